"""Windowing a trie that is there: the command pack."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from dagpack_cli.errors import NoInputError, UsageError
from dagpack_cli.manifest import (
    UNMERGED_LAYOUTS,
    Manifest,
    PackOptions,
)
from dagpack_cli.pipeline.current import check_stored_trie, find_published, read_run
from dagpack_cli.pipeline.execution import BuildResult, Execution
from dagpack_cli.pipeline.publishing import note_held, pack_staged, publish_staged, write_generation
from dagpack_cli.pipeline.staging import locked, pointed_stage, staged_trie
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.pack import pack_fingerprint
from dagpack_cli.stages.receipts import read_receipt
from dagpack_cli.storage import (
    STAGING,
    open_current,
    read_current,
    remove_leftovers,
)

__all__ = ["check_merge", "pack", "stored_merge"]


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
        locks.enter_context(locked(target, execution))
        if target != out and staged_trie(out) is not None:
            locks.enter_context(locked(out, execution))  # or a build there would clear the trie away
        staged = staged_trie(out)
        if staged is not None:
            return pack_staged(staged, out, target, pack_options, execution, started)
        if read_current(out) is None and pointed_stage(out) is not None:
            hint = f"dagpack dedup {out}, then this again"
            raise NoInputError(str(out), "what was ingested is not merged yet", "a finished dedup", hint=hint)
        with open_current(out) as generation:
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            info = TrieInfo.from_manifest(manifest)
            identity, _ = pack_fingerprint(info, pack_options)
            if (same := find_published(target, identity, execution)) is not None:
                note_held(remove_leftovers(target, execution.keep), execution)
                return same
            check_stored_trie(generation.path, manifest)
            work = target / STAGING / f"pack-{identity[:12]}"
            written = write_generation(generation.path, info, pack_options, work, execution, link=False)
            run = read_run(generation.path)
            return publish_staged(target, work, written, run, execution, started)


def stored_merge(out: Path) -> str:
    """Return how the trie that `pack` would take merges: prefix or state; prefix where there is none yet."""
    if (trie := staged_trie(out)) is not None:
        return TrieInfo.from_receipt(read_receipt(trie) or {}, trie).trie.merge
    if read_current(out) is None:
        return "prefix"
    with open_current(out) as generation:
        return Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json").trie.merge
