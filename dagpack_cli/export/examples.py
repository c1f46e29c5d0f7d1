"""Shards back to examples: the proof that nothing was lost.

The sequences that end in a window are read off its counts: what passes through a row and through none
of the rows after it ends there. The multiset of them, over all windows, must be that of the kept
examples (or of their pieces); then every example is given back with its id, order, weight and
supervised runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError, MismatchError
from dagpack_cli.manifest import Manifest
from dagpack_cli.provenance import KEPT, read_provenance, supervised_runs
from dagpack_cli.shards import WindowRows
from dagpack_cli.stages.plan import kept_pieces
from dagpack_cli.trie import Trie, open_trie
from dagpack_cli.verify import iter_windows

__all__ = ["export_examples", "export_sequences", "export_transitions"]

IGNORED = -100  # a label that trains nothing


def export_sequences(path: Path, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the distinct sequences of the windows with their multiplicities, from the shards alone.

    A sequence is one example, or one piece of a split one, as far as it is in the windows: what was
    pruned or truncated is not. ``{"partition", "segment", "input_ids", "count"}``.

    Raises:
        MismatchError: merge ``state``, where examples are not paths.
    """
    _refuse_state(path, manifest, "sequences")
    for part in manifest.partitions:
        for segment, sequence, count in _sequences(path, part, manifest):
            yield {"partition": part, "segment": segment, "input_ids": sequence.tolist(), "count": count}


def _refuse_state(path: Path, manifest: Manifest, what: str) -> None:
    if manifest.trie.merge == "state":
        found, hint = f"merge state: {what} are not paths of the graph", "dagpack export --transitions OUT"
        raise MismatchError(str(path), found, "merge prefix or none", hint=hint)


def export_transitions(path: Path, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield every row that stands for pairs: ``{"partition", "input", "target", "count", "weight"}``.

    A row that several windows share is yielded by each of them, with that window's share. Under merge
    ``state``, where a row has all its pairs in one window, this is the transition multiset of the corpus.
    """
    for part in manifest.partitions:
        for _, windows in iter_windows(path, manifest, part):
            for row in np.flatnonzero(windows.counts > 0).tolist():
                yield {
                    "partition": part,
                    "input": int(windows.inputs[row]),
                    "target": int(windows.targets[row]),
                    "count": int(windows.counts[row]),
                    "weight": float(windows.weights[row]),
                }


def _sequences(path: Path, part: str, manifest: Manifest) -> Iterator[tuple[int, npt.NDArray[np.int32], int]]:
    """Yield (segment, tokens, count) of the sequences that end in the windows of a partition."""
    if manifest.pack.layout == "walk":
        yield from _walk_sequences(path, manifest, part)
        return
    for _, windows in iter_windows(path, manifest, part):
        for first, last in zip(windows.row_offsets[:-1].tolist(), windows.row_offsets[1:].tolist(), strict=True):
            parents = windows.parents[first:last]
            counts = windows.counts[first:last].astype(np.int64)
            below = np.flatnonzero(parents >= 0)
            ending = counts.copy()
            np.subtract.at(ending, parents[below], counts[below])
            for row in np.flatnonzero(ending).tolist():
                yield int(windows.segments[first + row]), _path(windows, first, row), int(ending[row])


def _path(windows: WindowRows, first: int, row: int) -> npt.NDArray[np.int32]:
    """Return the tokens on the path that ends with a row's target."""
    rows = np.empty(int(windows.depths[first + row]) + 1, dtype=np.int64)
    for at in range(len(rows) - 1, -1, -1):
        rows[at] = first + row
        row = int(windows.parents[first + row])
    return np.concatenate((windows.inputs[rows[:1]], windows.targets[rows]))


def _walk_sequences(path: Path, manifest: Manifest, part: str) -> Iterator[tuple[int, npt.NDArray[np.int32], int]]:
    """As `_sequences`, where a row's pairs are counted once, in whichever window walked it first."""
    ids: dict[tuple[int, int, int], int] = {}
    parents: list[int] = []
    tokens: list[tuple[int, int]] = []
    counts: list[int] = []
    segments: list[int] = []
    for _, windows in iter_windows(path, manifest, part):
        numbers = np.empty(len(windows.inputs), dtype=np.int64)
        columns = (windows.parents, windows.inputs, windows.targets, windows.segments, windows.counts)
        bases = np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets)).tolist()
        for row, (parent, source, target, segment, count) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            above = int(numbers[bases[row] + parent]) if parent >= 0 else -1 - segment
            key = (above, source, target)
            number = ids.setdefault(key, len(ids))
            if number == len(parents):
                parents.append(above if parent >= 0 else -1)
                tokens.append((source, target))
                counts.append(0)
                segments.append(segment)
            counts[number] += count
            numbers[row] = number
    ending = list(counts)
    for number, parent in enumerate(parents):
        if parent >= 0:
            ending[parent] -= counts[number]
    for number, count in enumerate(ending):
        if count:
            sequence, at = [], number
            while at >= 0:
                sequence.append(tokens[at][1])
                source, at = tokens[at][0], parents[at]
            sequence.append(source)
            yield segments[number], np.array(sequence[::-1], dtype=np.int32), count


def export_examples(path: Path, manifest: Manifest, *, dropped: bool = False) -> Iterator[dict[str, Any]]:
    """Yield every kept example, in input order, as it was given; `dagpack build` reads the result again.

    The windows are read first, and hold exactly the kept examples or this raises. Each example is
    ``{"id", "input_ids", "labels", "weight"}``, with ``group`` where it has one.

    Args:
        path: of the generation.
        manifest: of it.
        dropped: also give back examples that ``--on-long drop`` left out of the windows.

    Raises:
        DamageError: the windows hold other sequences than the examples say.
        MismatchError: merge ``state``.
    """
    _refuse_state(path, manifest, "examples")
    table = read_provenance(path / "examples.parquet")
    tries = {part: open_trie(path / "trie" / part) for part in manifest.partitions}
    _compare(path, manifest, table, tries)
    runs, run_offsets = supervised_runs(table)
    root = 0 if manifest.tokenizer["virtual_root"] is None else 1
    statuses = table.column("status").to_pylist()
    columns = [table.column(name) for name in ("id", "partition", "end_node", "weight", "group")]
    for example, status in enumerate(statuses):
        if status != KEPT and not (dropped and status == "dropped"):
            continue
        name, part, node, weight, group = (column[example].as_py() for column in columns)
        ids = _tokens(tries[part], node)[root:]
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        for low, high in runs[run_offsets[example] : run_offsets[example + 1]].tolist():
            labels[low:high] = ids[low:high]
        record = {"id": name, "input_ids": ids.tolist(), "labels": labels.tolist(), "weight": weight}
        yield record | ({"group": group} if group is not None else {})


def _tokens(trie: Trie, node: int) -> npt.NDArray[np.int32]:
    """Return the tokens from the root to the end of a trie's node."""
    return np.concatenate([trie.tokens[trie.offsets[at] : trie.offsets[at + 1]] for at in trie.path(node)])


def _digest(sequence: npt.NDArray[np.int32]) -> bytes:
    return hashlib.blake2b(sequence.astype("<i4").tobytes(), digest_size=16).digest()


def _compare(path: Path, manifest: Manifest, table: Any, tries: dict[str, Trie]) -> None:
    """Raise unless the windows hold the kept examples' pieces, each as often as there are examples.

    Pruned rows are in no window: then a window's sequence is the beginning of its example's piece, up
    to the last row that something needs, and only what is left of each is compared.
    """
    for part in manifest.partitions:
        found: Counter[bytes] = Counter()
        for _, sequence, count in _sequences(path, part, manifest):
            found[_digest(sequence)] += count
        expected: Counter[bytes] = Counter()
        last, tokens = -1, np.zeros(0, dtype=np.int32)
        for node, low, high in kept_pieces(path, manifest, table, part):
            if node != last:
                last, tokens = node, _tokens(tries[part], node)
            expected[_digest(tokens[low - 1 : high])] += 1
        if found != expected:
            missing, surplus = (expected - found).total(), (found - expected).total()
            raise DamageError(
                str(path / "shards"),
                f"{part}: {missing:,} kept sequences are in no window, {surplus:,} in windows are no example's",
                "the same multiset",
                hint="dagpack verify OUT names every damaged file; dagpack build CORPUS OUT --rehash makes it anew",
            )
