"""The ledger of a build, which balances or stops it, and the costs that savings are quoted from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import NoInputError
from dagpack_cli.manifest import (
    PackOptions,
)
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing import Bound
from dagpack_cli.packing.pieces import ExampleEnds, piece_lengths
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.profile import layout_baselines
from dagpack_cli.provenance import EMPTY, SINGLE_TOKEN, STATUSES, UNTRAINED
from dagpack_cli.shards.files import ShardReport
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.plan import Partition, Planned
from dagpack_cli.trie import Engine

__all__ = [
    "THE_CORPUS",
    "baselines_of",
    "bound_facts",
    "check_balance",
    "check_trains",
    "packing_summary",
    "partition_ledger",
    "total_ledger",
]

Int64Array = npt.NDArray[np.int64]


def partition_ledger(partition: Partition, planned: Planned, report: ShardReport, info: TrieInfo) -> dict[str, Any]:
    """Return what came in and where it is; a ledger that does not balance is a bug."""
    number = PARTITIONS.index(partition.name)
    root = 0 if info.virtual_root is None else 1
    examples = np.zeros(len(STATUSES), dtype=np.int64)
    tokens = all_pairs = untrained_pairs = 0
    for span in spans(len(partition.lengths)):
        mine = partition.partitions[span] == number
        statuses, lengths = partition.statuses[span][mine], partition.lengths[span][mine]
        pairs = np.maximum(lengths - 1 + np.where(lengths > 0, root, 0), 0)
        examples += np.bincount(statuses, minlength=len(STATUSES))
        tokens += int(lengths.sum())
        all_pairs += int(pairs.sum())
        untrained_pairs += int(pairs[statuses == STATUSES.index(UNTRAINED)].sum())
    by_status = dict(zip(STATUSES, examples.tolist(), strict=True))
    pieces = planned.pieces
    dropped_examples = pieces.num_dropped_examples
    state = info.trie.merge == "state"
    result = {
        "examples": {
            "in": sum(by_status.values()),
            "kept": len(partition.chosen) - dropped_examples,
            "empty": by_status[EMPTY],
            "single_token": by_status[SINGLE_TOKEN],
            "dropped": dropped_examples + by_status[UNTRAINED],
        },
        "pairs": {
            "in": all_pairs,
            "in_windows": report.counts,
            "pruned": planned.removed if state else pieces.num_pruned,
            "truncated": planned.truncated if state else pieces.num_truncated,
            "dropped": pieces.num_dropped + untrained_pairs,
        },
        "tokens_in": tokens,
        "merged": report.counts - report.owned,
    }
    check_balance(result)
    return result


def check_balance(ledger: dict[str, Any]) -> None:
    """Raise `RuntimeError`, a bug, unless examples and pairs in are those accounted for."""
    for unit in ("examples", "pairs"):
        parts = {name: value for name, value in ledger[unit].items() if name != "in"}
        if sum(parts.values()) != ledger[unit]["in"]:
            raise RuntimeError(f"the ledger does not balance: {unit} in {ledger[unit]['in']}, accounted for {parts}")


def total_ledger(ledger: dict[str, Any], info: TrieInfo) -> dict[str, Any]:
    """Return the sum over partitions, with the transitions that no partition has because a rule dropped them."""
    total: dict[str, Any] = {
        unit: {name: sum(part[unit][name] for part in ledger.values()) for name in next(iter(ledger.values()))[unit]}
        for unit in ("examples", "pairs")
    }
    dropped = info.reading["dropped_transitions"]
    total["pairs"]["in"] += dropped
    total["pairs"]["dropped"] += dropped
    for name in ("tokens_in", "merged"):
        total[name] = sum(part[name] for part in ledger.values())
    check_balance(total)
    return total


THE_CORPUS = "the corpus"  # which a trie does not know the place of


def check_trains(packing: dict[str, Any], ledger: dict[str, Any], info: TrieInfo, on_long: str) -> None:
    """Raise unless the training partition has something to train on."""
    total = ledger["total"]
    if total["pairs"]["in"] == 0:
        raise NoInputError(
            THE_CORPUS,
            f"no example of {total['examples']['in']:,} has two tokens",
            "at least one pair of a token and the next",
            hint="look into the files, or name what they hold with --format",
        )
    untrained = info.reading["untrained"] + info.reading["repeated"]
    if untrained and packing["train"]["supervised_pairs"] == 0:
        conversations = "one conversation" if untrained == 1 else f"{untrained:,} conversations"
        template = info.tokenizer["chat_template"]["name"]
        raise NoInputError(
            THE_CORPUS,
            f"nothing is trained in its {conversations} (chat template: {template})",
            "messages of an assistant are trained",
            hint="chat needs assistant messages of weight 1; --supervise all trains every message",
        )
    if on_long == "drop" and total["pairs"]["dropped"] == total["pairs"]["in"]:
        raise NoInputError(
            "--on-long drop",
            f"every one of {total['examples']['dropped']:,} examples is dropped",
            "at least one to train on",
            hint="--on-long split keeps every pair; or a larger --seq-len",
        )
    if packing["train"]["supervised_pairs"] == 0:
        where = "the training partition" if len(packing) > 1 else THE_CORPUS
        raise NoInputError(
            where,
            f"no pair of its {ledger['train']['pairs']['in']:,} is supervised",
            "at least one to train on",
            hint="chat needs assistant messages; input_ids need labels other than -100; rewards or advantages must "
            "not all be 0; or lower --val-fraction",
        )


def packing_summary(
    partition: Partition,
    planned: Planned,
    report: ShardReport,
    options: PackOptions,
    engine: Engine,
    zeros: Zeros = np.zeros,
) -> dict[str, Any]:
    """Return what a partition's windows cost, the bound on it, and what the baselines would cost.

    Where prefixes are merged, also what several ``--min-shared`` would cost, estimated. ``zeros`` makes arrays with an
    entry a piece.
    """
    weights = partition.ends.supervision.weights
    facts = {
        "windows": report.num_windows,
        "rows": report.num_rows,
        "distinct_rows": planned.distinct_rows,
        "pairs": report.counts,
        "supervised_pairs": report.num_supervised,
        "weight_sum": report.weight_sum,
        "negative_weights": any(bool((weights[span] < 0).any()) for span in spans(len(weights))),
        "attention_edges": report.attention_edges,
        "blocks": report.blocks,
        "bound": bound_facts(planned.bound),
        "strategy": planned.strategy,
        "tried": {name: asdict(cost) for name, cost in planned.tried.items()},
        "baselines": baselines_of(partition, options, engine, zeros) | planned.others,
    }
    return facts | {"min_shared": planned.min_shared} if planned.min_shared else facts


def bound_facts(bound: Bound) -> dict[str, int]:
    """Return a bound as it is stored; ``covering_windows`` are those of the covering bound, 0 if it proved nothing."""
    return {
        "windows": bound.windows,
        "rows": bound.rows,
        "attention_edges": bound.attention,
        "covering_windows": bound.covering_windows,
    }


def baselines_of(
    partition: Partition, options: PackOptions, engine: Engine, zeros: Zeros = np.zeros
) -> dict[str, dict[str, int]]:
    """Return what a partition's examples would cost without a trie; ``zeros`` makes arrays with an entry a piece."""
    given, packed = (
        piece_lengths(partition.ends, options.seq_len, options.on_long, prune=prune, zeros=zeros)
        for prune in (False, options.prune)
    )
    turns = _turn_lengths(partition.ends, options, zeros)
    return layout_baselines(given, packed, turns, options.capacity, engine)


def _turn_lengths(ends: ExampleEnds, options: PackOptions, zeros: Zeros) -> Int64Array:
    """Return the pairs of one example per supervised run, where some example has more than one.

    What ``--on-long`` does to examples is done to these too: dropped, truncated, or split.
    """
    num, several = 0, False
    for pairs, most in _iter_turns(ends, options):
        num += len(pairs)
        several |= most > 1
    found = zeros(num if several else 0, np.int64)
    done = 0
    for pairs, _ in _iter_turns(ends, options) if several else ():
        found[done : done + len(pairs)] = pairs
        done += len(pairs)
    return found


def _iter_turns(ends: ExampleEnds, options: PackOptions) -> Iterator[tuple[Int64Array, int]]:
    """Yield what `_turn_lengths` returns for some examples after the other, and the most runs that one of them has."""
    supervision, seq_len = ends.supervision, options.seq_len
    for span in spans(len(ends.lengths)):
        offsets = supervision.run_offsets[span.start : span.stop + 1]
        runs = supervision.runs[int(offsets[0]) : int(offsets[-1])]
        owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        pairs = runs[:, 1] - 1
        kept = pairs > 0
        if options.on_long == "drop":
            kept &= ends.lengths[span][owners] - 1 <= seq_len
        if options.on_long == "truncate":
            kept &= runs[:, 0] <= seq_len
            pairs = np.minimum(pairs, seq_len)
        most = int(np.bincount(owners[kept]).max(initial=0))
        pairs = pairs[kept]
        sizes = -(-pairs // seq_len)
        number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        yield np.minimum(np.repeat(pairs, sizes) - number * seq_len, seq_len), most
