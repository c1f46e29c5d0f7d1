"""The forest of rows at a `--min-shared`, the trie's own or a larger one, and what it would cost to pack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dagpack_cli.comparison import Costs, placement_costs
from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.memory import Zeros
from dagpack_cli.packing import Forest, bundle_leaves, place_leaves
from dagpack_cli.packing.cutting import RowForest, cut_forest
from dagpack_cli.packing.pieces import ExampleEnds, Pieces
from dagpack_cli.profile import min_shared_costs
from dagpack_cli.trie import Engine, Trie, part_prefixes

__all__ = ["COMPARED", "ESTIMATED_NODES", "cut_rows", "estimate_min_shared"]

COMPARED = (1, 8, 32, 128, 512)
"""The N that a build compares, with its own and as far as they are larger."""

ESTIMATED_NODES = 250_000
"""Nodes of a trie, or of a forest cut from it, above which no windows are estimated."""


def cut_rows(
    trie: Trie,
    ends: ExampleEnds,
    merged: TrieOptions,
    options: PackOptions,
    *,
    min_shared: int | None = None,
    engine: Engine = "auto",
    zeros: Zeros = np.zeros,
) -> tuple[RowForest, Pieces]:
    """Return the forest of rows of a merged layout, and the pieces of its examples.

    Args:
        trie: of one partition.
        ends: where its examples end.
        merged: the options the trie was merged with.
        options: of the packing.
        min_shared: None for the trie as it is; else not below what it was merged with: the forest is the
            one that a trie merged so would give. What `RowForest` says of tokens and trie nodes means that trie.
        engine: never changes the result.
        zeros: makes the arrays with an entry a node or a piece.
    """
    offsets, parents, depths = trie.offsets, trie.parents, trie.depths
    if min_shared is not None and min_shared != merged.min_shared:
        nodes, moved = part_prefixes(trie, min_shared, engine=engine)
        offsets, parents, depths = nodes.offsets, nodes.parents, nodes.depths
        ends = replace(ends, nodes=moved[ends.nodes])
    state = merged.merge == "state"
    return cut_forest(
        offsets,
        parents,
        depths,
        options.seq_len,
        options.on_long,
        prune=options.prune,
        examples=None if state else ends,
        supervised=trie.supervised if state else None,
        engine=engine,
        zeros=zeros,
    )


def estimate_min_shared(
    trie: Trie, ends: ExampleEnds, merged: TrieOptions, options: PackOptions, engine: Engine, zeros: Zeros = np.zeros
) -> list[dict[str, Any]]:
    """Return what the trie's own ``--min-shared`` and larger ones would give, each by the same cheap rule.

    ``trie`` is exact: trees, rows and attention edges before anything is cut, pruned or packed.
    ``packed`` is what windows made by bottom-up best fit alone would cost, whatever the layout, so that
    one N compares with another: layout dag tries more and never needs more windows. It is None
    beyond `ESTIMATED_NODES`, which depends on the trie and the options alone.

    Args:
        trie: of one partition, merged by prefix.
        ends: where its examples end.
        merged: the options the trie was merged with.
        options: of the packing.
        engine: never changes the result.
        zeros: makes the arrays with an entry a node.

    Time: one `cut_forest` and one `bundle_leaves` for each N that leaves more apart than the one before.
    """
    own = merged.min_shared
    numbers = [own, *(number for number in COMPARED if number > own)]
    found: list[dict[str, Any]] = []
    for number, trees, rows, edges in min_shared_costs(trie, numbers, zeros):
        alone = {"trees": trees, "rows": rows, "attention_edges": edges}
        if found and found[-1]["trie"]["trees"] == trees:  # each prefix left apart is a tree more: nothing changed
            packed = found[-1]["packed"]
        elif trie.num_nodes > ESTIMATED_NODES:
            packed = None
        else:
            forest = cut_rows(trie, ends, merged, options, min_shared=number, engine=engine)[0].forest
            packed = _estimate(forest, options, engine)
        found.append({"min_shared": number, "trie": alone, "packed": packed})
    return found


def _estimate(forest: Forest, options: PackOptions, engine: Engine) -> Costs | None:
    """Return the costs of windows made by bottom-up best fit, siblings as a build arranges them."""
    if forest.num_nodes > ESTIMATED_NODES:
        return None
    windows = bundle_leaves(forest, options.capacity, engine=engine)
    return placement_costs(forest, place_leaves(forest, windows, engine=engine), arrange=True)
