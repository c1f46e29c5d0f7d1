"""The order of a build: lock, plan, ingest, dedup, pack, publish. The only orchestration.

    build = ingest -> dedup -> pack -> publish

Unfinished work lies in ``.staging/<fingerprint>`` and is taken up again by the next build with the
same inputs, options and versions; what is published is the same bytes either way.
"""

from __future__ import annotations

import json
import math
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from dagpack_cli.corpora.files.sources import known_as
from dagpack_cli.errors import DagpackError, DamageError, MismatchError, NoInputError, UsageError
from dagpack_cli.failpoints import step
from dagpack_cli.locks import lock_output
from dagpack_cli.manifest import (
    FORMAT_VERSION,
    UNMERGED_LAYOUTS,
    IngestOptions,
    Manifest,
    PackOptions,
    TrieOptions,
    fingerprint,
    library_versions,
    seal_run,
    unseal_run,
)
from dagpack_cli.memory import default_memory
from dagpack_cli.stages.cache import ReadSource, are_whole, prune_cache
from dagpack_cli.stages.dedup import TrieInfo, dedup_sources
from dagpack_cli.stages.ingest import ingest_sources
from dagpack_cli.stages.inputs import IngestPlan, plan_ingest, settled
from dagpack_cli.stages.ledger import THE_CORPUS
from dagpack_cli.stages.pack import pack_fingerprint, pack_trie
from dagpack_cli.stages.preview import preview_packing
from dagpack_cli.stages.receipts import Listener, SilentListener, read_receipt, write_receipt
from dagpack_cli.storage import (
    CACHE,
    STAGING,
    canonical_json,
    current_name,
    is_full,
    open_current,
    publish,
    read_current,
    remove_generation,
    remove_leftovers,
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
_STAGE = re.compile(r"[\w-]+(/[\w-]+)?")  # a folder of the staging area, or one in such a folder


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
        wait: seconds to wait at most while another build holds the lock.
        cache: whether what has been read stays for the next build.
        memory: bytes that a build may hold, see `default_memory`; None is half of what the machine has.
        listener: hears progress and notes.
    """

    workers: int = 1
    engine: Engine = "auto"
    rehash: bool = False
    keep: int = 2
    wait: float = 0.0
    memory: int | None = None
    cache: bool = True
    listener: Listener = field(default_factory=SilentListener)

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.workers < 1:
            raise UsageError("--workers", str(self.workers), "at least 1")
        if self.keep < 1:
            raise UsageError("--keep", str(self.keep), "at least 1")
        if not 0 <= self.wait < math.inf:
            raise UsageError("--wait", str(self.wait), "a number of seconds, at least 0")


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
    with _locked(out, execution):
        plan = _plan(corpus, out, tokenizer, ingest_options, execution)
        if (current := _unchanged(out, plan, trie_options, pack_options, execution)) is not None:
            _clear_staging(out)
            _note_held(remove_leftovers(out, execution.keep), execution)
            return current
        _clear_staging(out, keep=plan.fingerprint[:12])  # what other inputs or options left is in nobody's way
        staged = _ingest(plan, out, execution)
        trie = dedup_sources(
            staged,
            _read_spec(staged),
            _read_sources(out, staged),
            trie_options,
            engine=execution.engine,
            memory=execution.memory or default_memory(),
            workers=execution.workers,
            listener=execution.listener,
        )
        try:
            return _pack_staged(trie, out, out, pack_options, execution, started)
        except DagpackError as error:
            if error.where == THE_CORPUS:
                error.where = str(corpus)
            raise


def ingest(
    corpus: Path, out: Path, *, tokenizer: TokenizerChoice, ingest_options: IngestOptions, execution: Execution
) -> Path:
    """Read and tokenise a corpus into the staging area of an output; return the staged folder."""
    _check_corpus(corpus, out)
    with _locked(out, execution):
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
    with _locked(out, execution):
        pointed = _pointed(out)
        if pointed is None:
            raise NoInputError(str(out), "nothing ingested", "a finished ingest", hint=hint)
        staged = pointed if (pointed / _SPEC).is_file() else pointed.parent
        if not are_whole(_read_sources(out, staged)):
            raise NoInputError(str(out / CACHE), "what was ingested is gone or damaged", "all of it", hint=hint)
        trie = dedup_sources(
            staged,
            _read_spec(staged),
            _read_sources(out, staged),
            trie_options,
            engine=execution.engine,
            memory=execution.memory or default_memory(),
            workers=execution.workers,
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
    min_shared: Sequence[int] = (),
) -> list[tuple[int, PackOptions, dict[str, Any]]]:
    """Return what packing a corpus, or the trie of an output, would cost with each of several options.

    Nothing is written beside a temporary folder for a corpus. Of an output, the options of its
    ingest and its trie are its own: others are refused, but for a larger ``min_shared``, which the trie
    tells as exactly as if it had been merged with it.

    Args:
        source: a corpus or an output.
        tokenizer: of a corpus, as are the two that follow.
        ingest_options: likewise.
        trie_options: likewise.
        pack_options: each is planned.
        execution: of the plan.
        min_shared: each is planned with every one of ``pack_options``, instead of that of
            ``trie_options``; where it is empty, of an output its own.

    Returns:
        (min_shared, options, facts of every partition), for each of ``pack_options`` one min_shared after the other.

    Raises:
        DagpackError: as for a build.
    """
    if read_current(source) is not None:
        with open_current(source) as generation:
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            _check_own(source, manifest, tokenizer, ingest_options, trie_options)
            info = TrieInfo.from_manifest(manifest)
            numbers = min_shared or [manifest.trie.min_shared]
            _check_derivable(source, manifest.trie, numbers)
            return _previews(generation.path, info, numbers, pack_options, execution)
    numbers = min_shared or [trie_options.min_shared]
    fewest = min((replace(trie_options, min_shared=number) for number in numbers), key=lambda one: one.min_shared)
    with TemporaryDirectory(prefix="dagpack-plan-") as folder:
        out = Path(folder) / "out"
        ingest(source, out, tokenizer=tokenizer, ingest_options=ingest_options, execution=execution)
        trie = dedup(out, trie_options=fewest, execution=execution)
        info = TrieInfo.from_receipt(read_receipt(trie) or {}, trie)
        return _previews(trie, info, numbers, pack_options, execution)


def _check_own(
    source: Path, manifest: Manifest, tokenizer: TokenizerChoice, ingest: IngestOptions, trie: TrieOptions
) -> None:
    """Raise where a plan of an output is asked for with another reading or merging than its own."""
    own = (
        tokenizer == TokenizerChoice()
        and ingest in (IngestOptions(), manifest.ingest)
        and trie in (TrieOptions(), manifest.trie, replace(manifest.trie, min_shared=1))
    )
    if not own:
        raise UsageError(
            str(source),
            "is an output, which has been read and merged with options of its own",
            "only lengths, --on-long, --prune, --polish and a larger --min-shared can be chosen for it",
            hint="leave the other options out, or give the corpus",
        )


def _check_derivable(source: Path, merged: TrieOptions, numbers: Sequence[int]) -> None:
    """Raise where a trie does not tell what it would be with one of several ``--min-shared``."""
    for number in numbers:
        replace(merged, min_shared=number)  # refuses what is no number of tokens, and any under --merge state
        if number < merged.min_shared:
            raise UsageError(
                "--min-shared",
                f"{number:,}, but {source} was merged with {merged.min_shared:,}, and what it left apart is not joined",
                f"at least {merged.min_shared:,}",
                hint="give the corpus, of which any N can be planned",
            )


def _previews(
    trie: Path,
    info: TrieInfo,
    numbers: Sequence[int],
    pack_options: Sequence[PackOptions],
    execution: Execution,
) -> list[tuple[int, PackOptions, dict[str, Any]]]:
    return [
        (number, options, preview_packing(trie, info, options, execution.engine, min_shared=number))
        for options in pack_options
        for number in numbers
    ]


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
    target = out if new_out is None or (new_out.exists() and out.exists() and new_out.samefile(out)) else new_out
    if not out.is_dir():
        raise NoInputError(
            str(out), "no such directory", "a directory written by dagpack", hint="dagpack build CORPUS OUT"
        )
    with ExitStack() as locks:
        locks.enter_context(_locked(target, execution))
        if target != out and _staged_trie(out) is not None:
            locks.enter_context(_locked(out, execution))  # or a build there would clear the trie away
        staged = _staged_trie(out)
        if staged is not None:
            return _pack_staged(staged, out, target, pack_options, execution, started)
        if read_current(out) is None and _pointed(out) is not None:
            hint = f"dagpack dedup {out}, then this again"
            raise NoInputError(str(out), "what was ingested is not merged yet", "a finished dedup", hint=hint)
        with open_current(out) as generation:
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            info = TrieInfo.from_manifest(manifest)
            identity, _ = pack_fingerprint(info, pack_options)
            if (same := _published(target, identity, execution)) is not None:
                _note_held(remove_leftovers(target, execution.keep), execution)
                return same
            _check_trie(generation.path, manifest)
            work = target / STAGING / f"pack-{identity[:12]}"
            written = _write(generation.path, info, pack_options, work, execution, link=False)
            run = _read_run(generation.path)
            return _publish(target, work, written, run, execution, started)


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
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not _STAGE.fullmatch(name):
        return None
    stage = out / STAGING / name
    return stage if read_receipt(stage) is not None else None


def _clear_staging(out: Path, keep: str = "") -> None:
    """Remove unfinished work, but what a command of its own left for the next one, and ``keep``."""
    pointed = _pointed(out)
    for path in (out / STAGING).glob("*"):
        if not path.is_dir() or path.name == keep:
            continue
        mine = pointed is not None and pointed.is_relative_to(path)
        for unfinished in (*path.glob("*.partial"), *path.glob("pack-*")) if mine else (path,):
            with step("staging-remove"):
                shutil.rmtree(unfinished, ignore_errors=True)
    for partial in (out / STAGING).glob(".*.partial"):  # of a pointer that was never finished
        partial.unlink(missing_ok=True)


@contextmanager
def _locked(out: Path, execution: Execution) -> Iterator[None]:
    """Hold the lock; where the disk is full, remove the unfinished work that filled it, so that others can go on."""
    with lock_output(out, wait=execution.wait, tell=execution.listener.note):
        cached = set((out / CACHE).glob("*"))
        try:
            yield
        except OSError as error:
            if is_full(error):
                _clear_staging(out)
                for path in set((out / CACHE).glob("*")) - cached:
                    shutil.rmtree(path, ignore_errors=True)
            raise


def _note_held(names: Sequence[str], execution: Execution) -> None:
    for name in names:
        execution.listener.note(f"generation {name} stays: it is being read")


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
        known={} if execution.rehash else _known_inputs(corpus, out, options),
        workers=execution.workers,
        listener=execution.listener,
    )


def _known_inputs(corpus: Path, out: Path, options: IngestOptions) -> Mapping[str, Sequence[Any]]:
    """Return what the current generation's run knew of its inputs, if it read the same corpus in the same way."""
    try:
        current = read_current(out)
    except DamageError:
        return {}
    run = {} if current is None else _read_run(out / "generations" / current[0])
    same = run.get("corpus") == str(corpus.resolve()) and run.get("looked_for") == _looked_for(settled(options))
    return run.get("looked_at", {}) if same else {}


def _looked_for(options: IngestOptions) -> str:
    """Return a fingerprint of what decides as which format a file is read."""
    return fingerprint(FORMAT_VERSION, library_versions(huggingface=False), asdict(options))


def _read_run(generation: Path) -> dict[str, Any]:
    """Return ``run.json`` of a generation; nothing where it is missing or damaged: no result depends on it."""
    try:
        return unseal_run((generation / "run.json").read_bytes()) or {}
    except OSError:
        return {}


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
    if read_receipt(staged) is None or not are_whole(_read_sources(out, staged)):
        staged.mkdir(parents=True, exist_ok=True)
        looked_at = {
            source.name: [*known_as(source), entry.sha256]
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
            "inputs": [entry.to_json() for entry in plan.inputs],
            "ignored": plan.ignored,
            "skipped": plan.skipped,
            "looked_for": _looked_for(plan.options),
            "looked_at": looked_at,
        }
        with step("spec-write"):
            write_atomic(staged / _SPEC, canonical_json(spec))
        sources = ingest_sources(plan, staged, out / CACHE, workers=execution.workers, listener=execution.listener)
        listed = [[source.directory.name, dict(source.facts)] for source in sources]
        write_receipt(staged, {"sources": listed})
    return staged


def _absolute(spec: str) -> str:
    return spec if spec in ("bytes", "symbols", "grid", "none") else str(Path(spec).resolve())


def _read_spec(staged: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((staged / _SPEC).read_bytes())
    return spec


def _read_sources(out: Path, staged: Path) -> list[ReadSource]:
    """Return the inputs of a finished ingest."""
    listed = (read_receipt(staged) or {"sources": []})["sources"]
    return [ReadSource(out / CACHE / name, facts) for name, facts in listed]


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
        result = _publish(target, work, manifest, spec, execution, started)
    if target != out:
        return result
    _keep_cache(out, _read_sources(out, trie.parent), trie.parent, execution)
    # What an earlier command left is older than what has just been published.
    (out / STAGING / _NEXT).unlink(missing_ok=True)
    _clear_staging(out)
    return result


def _keep_cache(out: Path, used: Sequence[ReadSource], work: Path, execution: Execution) -> None:
    """Keep what the next build can use of what has been read, and nothing else.

    The generation is published by now: a disk that is too full to put splits together is no failure of it.
    """
    if execution.cache:
        with suppress(OSError):
            prune_cache(out / CACHE, used, work)
    else:
        shutil.rmtree(out / CACHE, ignore_errors=True)


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
        memory=execution.memory or default_memory(),
        workers=execution.workers,
        listener=execution.listener,
    )


def _publish(
    out: Path,
    work: Path,
    manifest: Manifest,
    read: Mapping[str, Any],
    execution: Execution,
    started: float,
) -> BuildResult:
    """Publish a staged generation; what may differ between equal builds goes to ``run.json``.

    ``read`` says what was read and how its files looked, for the next build of the same corpus.
    """
    run = {
        "corpus": read.get("corpus", ""),
        "looked_for": read.get("looked_for", ""),
        "looked_at": read.get("looked_at", {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "host": platform.node(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "engine": execution.engine,
        "workers": execution.workers,
        "manifest_sha256": sha256_file(work / "manifest.json"),
    }
    with step("run-write"):
        (work / "run.json").write_bytes(seal_run(run))
    before = current_name(out)
    path, held = publish(out, work, manifest.fingerprint, keep=execution.keep)
    if before[6:] == path.name[6:] and before < path.name:  # the same build again: the one before is damaged
        held += remove_generation(out, before)
    _note_held(held, execution)
    return BuildResult(path, manifest, False)
