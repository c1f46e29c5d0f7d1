"""The ledger of a build, counted again from its examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dagpack_cli.manifest import Manifest
from dagpack_cli.memory import spans
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import DROPPED, EMPTY, KEPT, SINGLE_TOKEN, STATUSES, UNTRAINED, ExampleColumns
from dagpack_cli.trie import Trie
from dagpack_cli.verify.examples import Rules
from dagpack_cli.verify.report import fail

__all__ = ["check_ledger"]


def check_ledger(
    where: Path, manifest: Manifest, columns: ExampleColumns, rules: Rules, tries: dict[str, Trie]
) -> None:
    """Raise unless the ledger is what examples, tries and the manifest's facts of windows make it, and balances.

    Pairs that are pruned are what is left; that they are the right ones the rows of the windows say.

    Args:
        where: the manifest.
        manifest: of the build.
        columns: of its examples; checked.
        rules: of the build.
        tries: by partition.
    """
    try:
        _check(where, manifest, columns, rules, tries)
    except (KeyError, TypeError, AttributeError) as error:
        fail(where, f"a ledger without what belongs there ({type(error).__name__}: {error})")


def _check(where: Path, manifest: Manifest, columns: ExampleColumns, rules: Rules, tries: dict[str, Trie]) -> None:
    for part, ledger in manifest.ledger.items():
        for unit in ("examples", "pairs"):
            parts = ledger.get(unit)
            if parts is not None and parts["in"] != sum(value for name, value in parts.items() if name != "in"):
                fail(where, f"the ledger of {part} does not balance: {unit} {parts}")
    total: dict[str, dict[str, int]] = {}
    for part in manifest.partitions:
        counted = _counted(columns, part, rules, tries.get(part))
        packing = manifest.packing[part]
        counted["pairs"]["in_windows"] = packing["pairs"]
        counted[""]["merged"] = packing["pairs"] - packing["distinct_rows"]
        _compare(where, part, manifest.ledger[part], counted)
        for unit, values in counted.items():
            sums = total.setdefault(unit, {})
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value
    dropped = manifest.ledger["reading"]["dropped_transitions"]
    total["pairs"]["in"] += dropped
    total["pairs"]["dropped"] += dropped
    _compare(where, "total", manifest.ledger["total"], total)


def _counted(columns: ExampleColumns, part: str, rules: Rules, trie: Trie | None) -> dict[str, dict[str, int]]:
    """Return what examples say of a partition's ledger, by unit."""
    examples, pairs = np.zeros(len(STATUSES), dtype=np.int64), np.zeros(len(STATUSES), dtype=np.int64)
    tokens = truncated = 0
    for span in spans(columns.num_examples):
        mine = columns.partitions[span] == PARTITIONS.index(part)
        statuses, lengths = columns.statuses[span][mine], columns.lengths[span][mine]
        sizes = rules.pairs(lengths)
        examples += np.bincount(statuses, minlength=len(STATUSES))
        np.add.at(pairs, statuses, sizes)
        tokens += int(lengths.sum())
        truncated += int(np.maximum(sizes[statuses == STATUSES.index(KEPT)] - rules.seq_len, 0).sum())
    by_status = dict(zip(STATUSES, examples.tolist(), strict=True))
    if rules.state and trie is not None:
        truncated = _truncated_transitions(trie, rules)
    return {
        "examples": {
            "in": sum(by_status.values()),
            "kept": by_status[KEPT],
            "empty": by_status[EMPTY],
            "single_token": by_status[SINGLE_TOKEN],
            "dropped": by_status[DROPPED] + by_status[UNTRAINED],
        },
        "pairs": {
            "in": int(pairs.sum()),
            "truncated": truncated if rules.on_long == "truncate" else 0,
            "dropped": int(pairs[STATUSES.index(DROPPED)] + pairs[STATUSES.index(UNTRAINED)]),
        },
        "": {"tokens_in": tokens},
    }


def _truncated_transitions(trie: Trie, rules: Rules) -> int:
    """Return the crossings of transitions that stand deeper than a window is long."""
    found = 0
    for span in spans(trie.num_nodes):
        starts = trie.depths[span].astype(np.int64)
        stops = starts + np.diff(trie.offsets[span.start : span.stop + 1])
        rows = np.maximum(stops - np.maximum(starts, rules.seq_len + 1), 0)
        found += int((rows * trie.counts[span]).sum())
    return found


def _compare(where: Path, part: str, ledger: dict[str, Any], counted: dict[str, dict[str, int]]) -> None:
    for unit, values in counted.items():
        stored = ledger[unit] if unit else ledger
        for name, value in values.items():
            if stored[name] != value:
                label = f"{unit} {name}" if unit else name
                fail(where, f"the ledger of {part}: {label} {stored[name]:,}", f"{value:,}")
