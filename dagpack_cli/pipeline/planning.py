"""What packing would cost: the command plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dagpack_cli.errors import UsageError
from dagpack_cli.manifest import (
    IngestOptions,
    Manifest,
    PackOptions,
    TrieOptions,
)
from dagpack_cli.pipeline.building import dedup, ingest
from dagpack_cli.pipeline.execution import Execution, TokenizerChoice
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.preview import preview_packing
from dagpack_cli.stages.receipts import read_receipt
from dagpack_cli.storage import (
    open_current,
    read_current,
)

__all__ = ["plan"]


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
