"""The current generation: what it knew of its inputs, whether it is whole, and whether a build would write it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagpack_cli.errors import DamageError, MismatchError
from dagpack_cli.manifest import (
    FORMAT_VERSION,
    IngestOptions,
    Manifest,
    PackOptions,
    TrieOptions,
    fingerprint,
    library_versions,
    unseal_run,
)
from dagpack_cli.pipeline.execution import BuildResult, Execution
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.inputs import IngestPlan, settled
from dagpack_cli.stages.pack import pack_fingerprint
from dagpack_cli.stages.receipts import Listener, SilentListener
from dagpack_cli.storage import (
    open_current,
    read_current,
    sha256_file,
)

__all__ = ["check_stored_trie", "find_published", "find_unchanged", "known_inputs", "looked_for", "read_run"]


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


def check_stored_trie(path: Path, manifest: Manifest) -> None:
    """Raise `DamageError` unless what a generation is packed from is what was written. O(its bytes)."""
    for entry in manifest.files:
        file = path / entry.path
        if not entry.path.startswith("shards/") and file.is_file() and (found := sha256_file(file)) != entry.sha256:
            raise DamageError(str(file), f"sha256 {found[:12]}", f"{entry.sha256[:12]} as the manifest says")


def read_run(generation: Path) -> dict[str, Any]:
    """Return ``run.json`` of a generation; nothing where it is missing or damaged: no result depends on it."""
    try:
        return unseal_run((generation / "run.json").read_bytes()) or {}
    except OSError:
        return {}


def known_inputs(corpus: Path, out: Path, options: IngestOptions) -> Mapping[str, Sequence[Any]]:
    """Return what the current generation's run knew of its inputs, if it read the same corpus in the same way."""
    try:
        current = read_current(out)
    except DamageError:
        return {}
    run = {} if current is None else read_run(out / "generations" / current[0])
    same = run.get("corpus") == str(corpus.resolve()) and run.get("looked_for") == looked_for(settled(options))
    return run.get("looked_at", {}) if same else {}


def looked_for(options: IngestOptions) -> str:
    """Return a fingerprint of what decides as which format a file is read."""
    return fingerprint(FORMAT_VERSION, library_versions(huggingface=False), asdict(options))


def find_unchanged(
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


def find_published(out: Path, identity: str, execution: Execution) -> BuildResult | None:
    """Return the current generation of an output if it has this fingerprint and is whole."""
    with _current(out, SilentListener()) as current:
        if current is None or current[1].fingerprint != identity:
            return None
        return BuildResult(*current, True) if _is_whole(*current, rehash=execution.rehash) else None
