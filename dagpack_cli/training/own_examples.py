"""The examples that a window stands for, from provenance and trie: what it must train exactly like.

Nothing of the window itself is read, neither its tokens nor its depths nor its weights, so that it can be
held against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError, MismatchError
from dagpack_cli.manifest import Manifest
from dagpack_cli.packing.pieces import ExampleEnds, Pieces
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import columns_of, read_provenance
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.plan import load_partition, pieces_of
from dagpack_cli.trie import Trie

__all__ = ["OwnExample", "own_examples"]


@dataclass(frozen=True, slots=True)
class OwnExample:
    """One token sequence of a window, or several equal ones.

    Attributes:
        tokens: shape (n,), int32; an example, or the piece of one that was split, as far as it is in the window.
        weights: shape (n - 1,), float64; what each target weighs, over all ``count`` of them.
        count: how many examples it is.
        supervised: pairs of weight other than 0 of all of them.
    """

    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float64]
    count: int
    supervised: int


def own_examples(path: Path, manifest: Manifest, part: str, chosen: Sequence[int]) -> dict[int, list[OwnExample]]:
    """Return the examples of some windows, equal ones together.

    Args:
        path: of a published generation.
        manifest: of it.
        part: the partition.
        chosen: numbers of its windows.

    Raises:
        MismatchError: layout ``walk`` or merge ``state``: their windows train a row once for all examples.
        DamageError: the provenance names another number of windows than the examples have pieces.

    Time O(examples of the partition + tokens of the windows' examples).
    """
    if manifest.pack.layout == "walk" or manifest.trie.merge == "state":
        state = manifest.trie.merge == "state"
        found = "merge state" if state else "layout walk"
        hint = "dagpack build CORPUS NEW_OUT --merge prefix" if state else "dagpack pack OUT NEW_OUT --layout dag"
        raise MismatchError(
            str(path),
            f"{found}: a window there is no mini-batch of its own examples, only the sum over all windows is exact",
            "layout dag, packed, best-fit or padded, merge prefix or none",
            hint=hint,
        )
    table = read_provenance(path / "examples.parquet")
    info = TrieInfo.from_manifest(manifest)
    partition = load_partition(part, path, info, columns_of(table, PARTITIONS))
    pieces = pieces_of(partition, info, manifest.pack)
    placed = np.flatnonzero(pieces.highs > pieces.lows)
    owners = np.asarray(table.column("windows").take(np.asarray(partition.chosen)).combine_chunks().flatten())
    if len(owners) != len(placed):
        where, found = str(path / "examples.parquet"), f"{len(owners):,} windows of examples"
        raise DamageError(where, found, f"{len(placed):,}, one for each piece that is packed", hint="build again")
    return {window: _merged(partition.trie, partition.ends, pieces, placed[owners == window]) for window in chosen}


def _merged(trie: Trie, ends: ExampleEnds, pieces: Pieces, numbers: npt.NDArray[np.int64]) -> list[OwnExample]:
    found: dict[bytes, OwnExample] = {}
    for number in numbers.tolist():
        example, low, high = (int(column[number]) for column in (pieces.examples, pieces.lows, pieces.highs))
        nodes = trie.path(int(ends.nodes[example]))
        whole = np.concatenate([trie.tokens[trie.offsets[node] : trie.offsets[node + 1]] for node in nodes])
        tokens = whole[low - 1 : high]
        weights = np.zeros(high - low)
        supervision = ends.supervision
        first, last = supervision.run_offsets[example : example + 2].tolist()
        for start, stop in supervision.runs[first:last].tolist():
            weights[max(start - low, 0) : max(stop - low, 0)] += supervision.weights[example]
        one = OwnExample(tokens, weights, 1, int(np.count_nonzero(weights)))
        if (other := found.get(tokens.tobytes())) is not None:
            supervised = other.supervised + one.supervised
            one = OwnExample(tokens, other.weights + weights, other.count + 1, supervised)
        found[tokens.tobytes()] = one
    return list(found.values())
