"""The order of a build: lock, plan, ingest, dedup, pack, publish. The only orchestration.

    build = ingest -> dedup -> pack -> publish

Unfinished work lies in ``.staging/<fingerprint>`` and is taken up again by the next build with the
same inputs, options and versions; what is published is the same bytes either way.
"""

from __future__ import annotations

import errno
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from dagpack_cli.errors import DamageError, MismatchError, NoInputError, UsageError
from dagpack_cli.manifest import UNMERGED_LAYOUTS, IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.stages.dedup import TrieInfo, dedup_splits
from dagpack_cli.stages.ingest import IngestPlan, identity_of, ingest_splits, plan_ingest
from dagpack_cli.stages.pack import pack_fingerprint, pack_trie
from dagpack_cli.stages.preview import preview_packing
from dagpack_cli.stages.receipts import Listener, SilentListener, read_receipt, write_receipt
from dagpack_cli.storage import (
    STAGING,
    canonical_json,
    lock_output,
    open_current,
    publish,
    read_current,
    sha256_file,
    write_atomic,
)
from dagpack_cli.trie import Engine

__all__ = [
    "BuildResult",
    "Execution",
    "TokenizerChoice",
    "build",
    "check_merge",
    "dedup",
    "ingest",
    "pack",
    "plan",
    "stored_merge",
]

_SPEC = "spec.json"
_NEXT = "next.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """Which tokenizer reads the corpus, and which template writes its conversations.

    Attributes:
        spec: ``auto``, ``bytes``, ``symbols``, ``none`` or a path.
        bos: an id or ``none`` instead of the tokenizer's own.
        eos: likewise.
        template: ``auto``, ``builtin`` or a path.
        template_date: what a template takes for today: YYYY-MM-DD.
    """

    spec: str = "auto"
    bos: str | None = None
    eos: str | None = None
    template: str = "auto"
    template_date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a build runs; none of it changes a byte of the result.

    Attributes:
        workers: processes that read and threads that write.
        engine: ``numpy`` or ``numba`` for the loops of the trie and the packer; ``auto`` by size.
        rehash: read every input again, even where size, times and inode are those of the last build.
        keep: generations that stay, the new one included.
        listener: hears progress and notes.
    """

    workers: int = 1
    engine: Engine = "auto"
    rehash: bool = False
    keep: int = 2
    listener: Listener = field(default_factory=SilentListener)

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.workers < 1:
            raise UsageError("--workers", str(self.workers), "at least 1")
        if self.keep < 1:
            raise UsageError("--keep", str(self.keep), "at least 1")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A published generation, and whether this call wrote it."""

    path: Path
    manifest: Manifest
    unchanged: bool


def check_merge(merge: str | None, layout: str) -> Literal["prefix", "state"]:
    """Return how the trie merges, given ``--merge`` (or None) and ``--layout``: prefix or state.

    Unmerged layouts keep examples apart in their windows; the trie on disk holds them merged, so
    that any other layout can be packed from it.

    Raises:
        UsageError: the two exclude each other.
    """
    unmerged = layout in UNMERGED_LAYOUTS
    if merge is None:
        return "prefix"
    if (merge == "none") != unmerged:
        fitting = "none" if unmerged else "prefix or state"
        hint = f"--layout {layout} takes --merge {fitting}; or choose --layout {'dag' if unmerged else 'best-fit'}"
        raise UsageError(f"--merge {merge}", f"does not go with --layout {layout}", f"--merge {fitting}", hint=hint)
    return "state" if merge == "state" else "prefix"


def build(
    corpus: Path,
    out: Path,
    *,
    tokenizer: TokenizerChoice,
    ingest_options: IngestOptions,
    trie_options: TrieOptions,
    pack_options: PackOptions,
    execution: Execution,
) -> BuildResult:
    """Build a corpus into an output directory, or find that nothing has changed.

    Raises:
        DagpackError: of the kind that fits; nothing is published then, and the previous generation,
            if there is one, stays current.
    """
    started = time.time()
    _check_corpus(corpus, out)
    with lock_output(out), _giving_space_back(out):
        plan = _plan(corpus, out, tokenizer, ingest_options, execution)
        if (current := _unchanged(out, plan, trie_options, pack_options, execution)) is not None:
            _clear_staging(out)
            return current
        _clear_staging(out, keep=plan.fingerprint[:12])  # what other inputs or options left is in nobody's way
        staged = _ingest(plan, out, execution)
        trie = dedup_splits(
            staged,
            _read_spec(staged),
            _split_receipts(staged),
            trie_options,
            engine=execution.engine,
            listener=execution.listener,
        )
        return _pack_staged(trie, out, out, pack_options, execution, started)


def ingest(
    corpus: Path, out: Path, *, tokenizer: TokenizerChoice, ingest_options: IngestOptions, execution: Execution
) -> Path:
    """Read and tokenise a corpus into the staging area of an output; return the staged folder."""
    _check_corpus(corpus, out)
    with lock_output(out):
        staged = _ingest(_plan(corpus, out, tokenizer, ingest_options, execution), out, execution)
        _point(out, staged)
        return staged


def dedup(out: Path, *, trie_options: TrieOptions, execution: Execution) -> Path:
    """Build the tries of what was ingested last; return their folder.

    Raises:
        NoInputError: nothing has been ingested.
    """
    hint = f"dagpack ingest CORPUS {out}, then this again"
    if not out.is_dir():
        raise NoInputError(str(out), "no such directory", "a finished ingest", hint=hint)
    with lock_output(out):
        pointed = _pointed(out)
        if pointed is None:
            raise NoInputError(str(out), "nothing ingested", "a finished ingest", hint=hint)
        staged = pointed if (pointed / _SPEC).is_file() else pointed.parent
        trie = dedup_splits(
            staged,
            _read_spec(staged),
            _split_receipts(staged),
            trie_options,
            engine=execution.engine,
            listener=execution.listener,
        )
        _point(out, trie)
        return trie


def plan(
    source: Path,
    *,
    tokenizer: TokenizerChoice,
    ingest_options: IngestOptions,
    trie_options: TrieOptions,
    pack_options: Sequence[PackOptions],
    execution: Execution,
) -> list[dict[str, Any]]:
    """Return what packing a corpus, or the trie of an output, would cost with each of several options.

    Nothing is written beside a temporary folder for a corpus. Of an output, the options of its
    ingest and its trie are its own: others are refused.

    Raises:
        DagpackError: as for a build.
    """
    if read_current(source) is not None:
        with open_current(source) as generation:
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            own = (
                tokenizer == TokenizerChoice()
                and ingest_options in (IngestOptions(), manifest.ingest)
                and trie_options in (TrieOptions(), manifest.trie)
            )
            if not own:
                raise UsageError(
                    str(source),
                    "is an output, which has been read and merged with options of its own",
                    "only lengths, --on-long, --prune and --polish can be chosen for it",
                    hint="leave the other options out, or give the corpus",
                )
            info = TrieInfo.from_manifest(manifest)
            return [preview_packing(generation.path, info, options, execution.engine) for options in pack_options]
    with TemporaryDirectory(prefix="dagpack-plan-") as folder:
        out = Path(folder) / "out"
        ingest(source, out, tokenizer=tokenizer, ingest_options=ingest_options, execution=execution)
        trie = dedup(out, trie_options=trie_options, execution=execution)
        info = TrieInfo.from_receipt(read_receipt(trie) or {}, trie)
        return [preview_packing(trie, info, options, execution.engine) for options in pack_options]


def pack(out: Path, new_out: Path | None, *, pack_options: PackOptions, execution: Execution) -> BuildResult:
    """Window a trie: the one `dedup` left in ``out``, else that of its current generation; publish the result.

    Args:
        out: where the trie is.
        new_out: where to publish; ``out`` itself where it is None.
        pack_options: of the packing.
        execution: of the build.

    Raises:
        NoInputError: there is no trie in ``out``.
    """
    started = time.time()
    target = out if new_out is None else new_out
    if not out.is_dir():
        raise NoInputError(
            str(out), "no such directory", "a directory written by dagpack", hint="dagpack build CORPUS OUT"
        )
    with lock_output(target):
        staged = _staged_trie(out)
        if staged is not None:
            return _pack_staged(staged, out, target, pack_options, execution, started)
        with open_current(out) as generation:
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            info = TrieInfo.from_manifest(manifest)
            identity, _ = pack_fingerprint(info, pack_options)
            if (same := _published(target, identity, execution)) is not None:
                return same
            _check_trie(generation.path, manifest)
            work = target / STAGING / f"pack-{identity[:12]}"
            written = _write(generation.path, info, pack_options, work, execution, link=False)
            run = _read_run(generation.path)
            return _publish(target, work, written, run.get("inputs", {}), run.get("corpus", ""), execution, started)


def stored_merge(out: Path) -> str:
    """Return how the trie that `pack` would take merges: prefix or state; prefix where there is none yet."""
    if (trie := _staged_trie(out)) is not None:
        return TrieInfo.from_receipt(read_receipt(trie) or {}, trie).trie.merge
    if read_current(out) is None:
        return "prefix"
    with open_current(out) as generation:
        return Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json").trie.merge


def _staged_trie(out: Path) -> Path | None:
    """Return the trie that `dedup` left for `pack`; what a failed build left is not meant by anyone."""
    pointed = _pointed(out)
    return pointed if pointed is not None and not (pointed / _SPEC).is_file() else None


def _point(out: Path, stage: Path) -> None:
    """Remember a finished stage for the command that takes the next step."""
    write_atomic(out / STAGING / _NEXT, canonical_json(stage.relative_to(out / STAGING).as_posix()))


def _pointed(out: Path) -> Path | None:
    """Return the stage finished last by a command of its own, None where there is none."""
    try:
        name = json.loads((out / STAGING / _NEXT).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    stage = out / STAGING / str(name)
    return stage if read_receipt(stage) is not None else None


def _clear_staging(out: Path, keep: str = "") -> None:
    """Remove unfinished work, but what a command of its own left for the next one, and ``keep``."""
    pointed = _pointed(out)
    for path in (out / STAGING).glob("*"):
        if path.is_dir() and path.name != keep and (pointed is None or not pointed.is_relative_to(path)):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _giving_space_back(out: Path) -> Iterator[None]:
    """Where the disk is full, remove the unfinished work that filled it, so that others can go on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _clear_staging(out)
        raise


def _check_corpus(corpus: Path, out: Path) -> None:
    """Raise before anything is made of OUT where the corpus is a mistake."""
    if not corpus.exists():
        raise NoInputError(str(corpus), "does not exist", "a folder or a file")
    if out.exists() and corpus.samefile(out):
        raise UsageError("OUT", f"{out} is CORPUS too", "another folder", hint="name a new folder for the output")


def _plan(
    corpus: Path, out: Path, tokenizer: TokenizerChoice, options: IngestOptions, execution: Execution
) -> IngestPlan:
    return plan_ingest(
        corpus,
        out,
        tokenizer=tokenizer.spec,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        template=tokenizer.template,
        template_date=tokenizer.template_date,
        options=options,
        known={} if execution.rehash else _known_inputs(corpus, out),
        workers=execution.workers,
        listener=execution.listener,
    )


def _known_inputs(corpus: Path, out: Path) -> Mapping[str, Sequence[Any]]:
    """Return what the current generation's run knew of its inputs, if it read the same corpus."""
    try:
        current = read_current(out)
    except DamageError:
        return {}
    run = {} if current is None else _read_run(out / "generations" / current[0])
    return run.get("inputs", {}) if run.get("corpus") == str(corpus.resolve()) else {}


def _read_run(generation: Path) -> dict[str, Any]:
    """Return ``run.json`` of a generation; nothing where it is missing or damaged: no result depends on it."""
    try:
        run = json.loads((generation / "run.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return run if isinstance(run, dict) else {}


@contextmanager
def _current(out: Path, listener: Listener) -> Iterator[tuple[Path, Manifest] | None]:
    """Give the current generation and its manifest; None, and a note, where a new build has to replace it."""
    with ExitStack() as stack:
        found = None
        try:
            if read_current(out) is not None:
                generation = stack.enter_context(open_current(out))
                manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
                found = generation.path, manifest
        except (DamageError, MismatchError) as error:
            listener.note(f"the current generation is replaced: {error}")
        yield found


def _is_whole(path: Path, manifest: Manifest, *, rehash: bool) -> bool:
    """Tell whether every file of a generation has its size and, with ``rehash``, its checksum."""
    for entry in manifest.files:
        file = path / entry.path
        if not file.is_file() or file.stat().st_size != entry.size or (rehash and sha256_file(file) != entry.sha256):
            return False
    return True


def _check_trie(path: Path, manifest: Manifest) -> None:
    """Raise `DamageError` unless what a generation is packed from is what was written. O(its bytes)."""
    for entry in manifest.files:
        file = path / entry.path
        if not entry.path.startswith("shards/") and file.is_file() and (found := sha256_file(file)) != entry.sha256:
            raise DamageError(str(file), f"sha256 {found[:12]}", f"{entry.sha256[:12]} as the manifest says")


def _unchanged(
    out: Path, plan: IngestPlan, trie_options: TrieOptions, pack_options: PackOptions, execution: Execution
) -> BuildResult | None:
    """Return the current generation if it is what this build would write."""
    with _current(out, execution.listener) as current:
        if current is None:
            return None
        path, manifest = current
        same = (
            manifest.trie == trie_options
            and manifest.pack == pack_options
            and manifest.ingest == plan.options
            and manifest.inputs == plan.inputs
            and manifest.ignored == plan.ignored
            and _same_tokenizer(manifest, plan)
            and manifest.fingerprint == pack_fingerprint(TrieInfo.from_manifest(manifest), pack_options)[0]
            and manifest.versions == plan.versions
            and _is_whole(path, manifest, rehash=execution.rehash)
        )
        return BuildResult(path, manifest, True) if same else None


def _same_tokenizer(manifest: Manifest, plan: IngestPlan) -> bool:
    """Tell whether a build's tokenizer is the plan's; a vocabulary made of the corpus follows from the inputs."""
    stored = manifest.tokenizer
    if plan.identity["kind"] == "symbols":
        return bool(stored["kind"] == "symbols")
    return all(stored.get(name) == value for name, value in plan.identity.items() if value is not None)


def _ingest(plan: IngestPlan, out: Path, execution: Execution) -> Path:
    staged = out / STAGING / plan.fingerprint[:12]
    if read_receipt(staged) is None:
        staged.mkdir(parents=True, exist_ok=True)
        inputs = {
            source.name: [*identity_of(source), entry.sha256]
            for source, entry in zip(plan.sources, plan.inputs, strict=True)
        }
        spec = {
            "fingerprint": plan.fingerprint,
            "corpus": str(plan.corpus.resolve()),
            "versions": plan.versions,
            "options": asdict(plan.options),
            "chat_template": plan.identity.get("chat_template"),
            "chat_template_sources": dict(plan.template_sources),
            "tokenizer": [_absolute(plan.tokenizer[0]), *plan.tokenizer[1:]],
            "inputs": [asdict(entry) for entry in plan.inputs],
            "ignored": plan.ignored,
            "skipped": plan.skipped,
            "splits": plan.splits,
            "stats": inputs,
        }
        (staged / _SPEC).write_bytes(canonical_json(spec))
        receipts = ingest_splits(plan, staged, workers=execution.workers, listener=execution.listener)
        write_receipt(staged, {"splits": receipts})
    return staged


def _absolute(spec: str) -> str:
    return spec if spec in ("bytes", "symbols", "grid", "none") else str(Path(spec).resolve())


def _read_spec(staged: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((staged / _SPEC).read_bytes())
    return spec


def _split_receipts(staged: Path) -> list[dict[str, Any]]:
    receipt = read_receipt(staged)
    return [] if receipt is None else list(receipt["splits"])


def _pack_staged(
    trie: Path, out: Path, target: Path, options: PackOptions, execution: Execution, started: float
) -> BuildResult:
    """Pack a trie staged in ``out`` and publish it in ``target``, nearly always the same directory."""
    info = TrieInfo.from_receipt(read_receipt(trie) or {}, trie)
    spec = _read_spec(trie.parent)
    identity, _ = pack_fingerprint(info, options)
    result = _published(target, identity, execution)
    if result is None:
        work = (trie.parent if target == out else target / STAGING) / f"pack-{identity[:12]}"
        manifest = _write(trie, info, options, work, execution, link=target == out)
        result = _publish(target, work, manifest, spec["stats"], spec["corpus"], execution, started)
    if target != out:
        return result
    # What an earlier command left is older than what has just been published.
    (out / STAGING / _NEXT).unlink(missing_ok=True)
    _clear_staging(out)
    return result


def _published(out: Path, identity: str, execution: Execution) -> BuildResult | None:
    """Return the current generation of an output if it has this fingerprint and is whole."""
    with _current(out, SilentListener()) as current:
        if current is None or current[1].fingerprint != identity:
            return None
        return BuildResult(*current, True) if _is_whole(*current, rehash=execution.rehash) else None


def _write(
    source: Path, info: TrieInfo, options: PackOptions, work: Path, execution: Execution, *, link: bool
) -> Manifest:
    work.parent.mkdir(parents=True, exist_ok=True)
    return pack_trie(
        source,
        info,
        options,
        work,
        link=link,
        engine=execution.engine,
        workers=execution.workers,
        listener=execution.listener,
    )


def _publish(
    out: Path,
    work: Path,
    manifest: Manifest,
    inputs: Mapping[str, Any],
    corpus: str,
    execution: Execution,
    started: float,
) -> BuildResult:
    """Publish a staged generation; what may differ between equal builds goes to ``run.json``."""
    run = {
        "corpus": corpus,
        "inputs": inputs,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "host": platform.node(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "engine": execution.engine,
        "workers": execution.workers,
        "manifest_sha256": sha256_file(work / "manifest.json"),
    }
    (work / "run.json").write_bytes(json.dumps(run, indent=1, sort_keys=True).encode() + b"\n")
    path, held = publish(out, work, manifest.fingerprint, keep=execution.keep)
    for name in held:
        execution.listener.note(f"generation {name} stays: it is being read")
    return BuildResult(path, manifest, False)
