"""Preview: what packing at some window length would give, without a shard being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dagpack_cli.comparison import placement_costs
from dagpack_cli.manifest import UNMERGED_LAYOUTS, PackOptions
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import read_columns
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.ledger import baselines_of, bound_facts
from dagpack_cli.stages.plan import check_options, load_partition, place_windows
from dagpack_cli.trie import Engine

__all__ = ["preview_packing"]


def preview_packing(
    source: Path, info: TrieInfo, options: PackOptions, engine: Engine, *, min_shared: int | None = None
) -> dict[str, Any]:
    """Return, for every partition, the costs, the bound, and the costs of other packers, as a build would store them.

    Args:
        source: a folder that holds ``trie/`` and ``examples.parquet``.
        info: of the trie.
        options: of the packing; a merged layout. What is longer than a window must be dealt with.
        engine: never changes the result.
        min_shared: None for that of the trie; else at least that: exactly what a trie merged so would give.

    Raises:
        UsageError: options that do not fit the trie.
    """
    assert options.layout not in UNMERGED_LAYOUTS
    columns = read_columns(source / "examples.parquet", PARTITIONS)
    partitions = [
        load_partition(name, source, info, columns) for name in PARTITIONS if (source / "trie" / name).is_dir()
    ]
    check_options(info, options, partitions)
    found = {}
    for partition in partitions:
        placed = place_windows(partition, info, options, engine, min_shared=min_shared)
        pieces = placed.pieces
        found[partition.name] = {
            **placement_costs(placed.rows.forest, placed.placement, arrange=options.layout == "dag"),
            "distinct_rows": int(placed.rows.forest.lengths.sum()),
            "pairs": int(np.maximum(pieces.highs - pieces.lows, 0).sum()),
            "bound": bound_facts(placed.bound),
            "strategy": placed.strategy,
            "baselines": baselines_of(partition, options, engine) | placed.others,
        }
    return found
