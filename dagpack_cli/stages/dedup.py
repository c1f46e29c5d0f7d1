"""Dedup: the examples of all splits become one trie a partition, and a table of their provenance."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.claims import join_families, settle_claims
from dagpack_cli.errors import DataError, UsageError
from dagpack_cli.examples import (
    EMPTY,
    KEPT,
    SINGLE_TOKEN,
    UNTRAINED,
    Examples,
    load_splits,
    provenance_table,
    read_lines,
    write_provenance,
)
from dagpack_cli.lints import sharing_stops
from dagpack_cli.manifest import IngestOptions, InputEntry, Manifest, TrieOptions, fingerprint, parse_options
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.partitions import PARTITIONS, assign_partitions
from dagpack_cli.profile import rows_also_in, trie_profile
from dagpack_cli.stages.receipts import Listener, read_receipt, write_receipt
from dagpack_cli.tokenizing import Symbols, Tokenizer, load_tokenizer, merge_symbols, shown_symbol
from dagpack_cli.tokenizing.stability import Stability
from dagpack_cli.trie import (
    Engine,
    Trie,
    build_trie,
    check_weights,
    count_transitions,
    markov_conflicts,
    merge_states,
    save_trie,
    sweep_weights,
)

__all__ = ["TrieInfo", "dedup_splits"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieInfo:
    """What is known of a trie and its examples before they are packed; part of every manifest."""

    trie_fingerprint: str
    versions: dict[str, str]
    ingest: IngestOptions
    trie: TrieOptions
    tokenizer: dict[str, Any]
    inputs: list[InputEntry]
    ignored: list[list[str]]
    reading: dict[str, Any]
    profiles: dict[str, Any]

    @classmethod
    def from_receipt(cls, value: dict[str, Any], where: Path) -> TrieInfo:
        """Return what a staged trie's receipt says."""
        return cls(
            **value
            | {
                "ingest": parse_options(IngestOptions, value["ingest"], where),
                "trie": parse_options(TrieOptions, value["trie"], where),
                "inputs": [InputEntry(**entry) for entry in value["inputs"]],
            }
        )

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> TrieInfo:
        """Return what a published build's manifest says of its trie."""
        return cls(
            trie_fingerprint=manifest.trie_fingerprint,
            versions=manifest.versions,
            ingest=manifest.ingest,
            trie=manifest.trie,
            tokenizer=manifest.tokenizer,
            inputs=manifest.inputs,
            ignored=manifest.ignored,
            reading=manifest.ledger["reading"],
            profiles=manifest.statistics["trie"],
        )

    @property
    def virtual_root(self) -> int | None:
        """The id of the virtual root, None where there is none."""
        value = self.tokenizer["virtual_root"]
        return None if value is None else int(value)


def dedup_splits(
    staged: Path,
    spec: dict[str, Any],
    receipts: list[dict[str, Any]],
    options: TrieOptions,
    *,
    engine: Engine,
    listener: Listener,
) -> Path:
    """Build the tries of a staged ingest; return the folder that holds them, complete.

    Args:
        staged: the staged build, with all splits read.
        spec: of the ingest: tokenizer, options, inputs, fingerprint.
        receipts: of the splits.
        options: of the trie.
        engine: never changes the result.
        listener: hears notes.

    Raises:
        DataError: ``--strict-markov`` and the corpus is not Markov.
        UsageError: ``--virtual-root`` has no id to use, or ``--merge state`` on text.
    """
    trie_fingerprint = fingerprint(spec["fingerprint"], asdict(options))
    directory = staged / f"trie-{trie_fingerprint[:12]}"
    if read_receipt(directory) is not None:
        return directory
    partial = staged / f"trie-{trie_fingerprint[:12]}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    examples, tokenizer = _load(staged, spec, options)
    root, vocab_size = _virtual_root(tokenizer, options, examples)
    tokenizer.save(partial / "tokenizer")
    for name, source in spec["chat_template_sources"].items():
        file = "chat_template.jinja" if name == "default" else f"chat_template_{name}.jinja"
        (partial / "tokenizer" / file).write_text(source, encoding="utf-8")
    groups = join_families(
        examples.keys, examples.run_owners, examples.meta.column("group").to_pylist(), examples.families
    )
    first_target = 1 if root is None else 0
    never = _statuses(examples, first_target) == UNTRAINED
    examples = examples.with_runs(settle_claims(examples.keys, examples.run_owners))
    statuses = _statuses(examples, first_target)
    repeated = int(np.count_nonzero((statuses == UNTRAINED) & ~never))
    reading = _reading(spec, receipts) | {"untrained": int(np.count_nonzero(never)), "repeated": repeated}
    parts = assign_partitions(
        examples.tokens,
        examples.offsets,
        examples.runs,
        examples.run_offsets,
        groups,
        first_target=first_target,
        val_fraction=options.val_fraction,
        seed=options.seed,
    )
    end_nodes = np.full(examples.num_examples, -1, dtype=np.int64)
    symbols = list(tokenizer.symbols) if isinstance(tokenizer, Symbols) else None
    profiles: dict[str, Any] = {}
    tries: dict[str, Trie] = {}
    for number, name in enumerate(PARTITIONS):
        chosen = np.flatnonzero((parts == number) & (statuses == KEPT))
        if name == "train" or options.val_fraction:  # empty or not: its examples are in the ledger
            trie, ends, conflicts = _partition_trie(examples, chosen, root, options, symbols, engine)
            end_nodes[chosen] = ends
            _report_conflicts(conflicts, options, listener)
            save_trie(trie, partial / "trie" / name)
            profiles[name] = trie_profile(trie, tokenizer.decode) | {"markov_conflicts": conflicts}
            if tokenizer.kind in ("bytes", "huggingface"):
                profiles[name]["sharing_stops"] = sharing_stops(trie, tokenizer.decode)
            tries[name] = trie
        listener.progress("dedup", number + 1, len(PARTITIONS))
    # Of several trees that start alike, a path does not say in which one to look for it.
    if "val" in tries and options.merge == "prefix" and options.min_shared == 1:
        profiles["val"]["supervised_rows"] = int(np.count_nonzero(tries["val"].weights))
        profiles["val"]["supervised_rows_also_in_train"] = rows_also_in(tries["val"], tries["train"])
    table = provenance_table(examples, [PARTITIONS[part] for part in parts], statuses.tolist(), end_nodes)
    write_provenance(partial / "examples.parquet", table, None, {})
    identity = tokenizer.identity() | {"vocab_size": vocab_size, "virtual_root": root}
    if spec["chat_template"] is not None:
        identity["chat_template"] = spec["chat_template"]
    info = TrieInfo(
        trie_fingerprint=trie_fingerprint,
        versions=spec["versions"],
        ingest=parse_options(IngestOptions, spec["options"], staged),
        trie=options,
        tokenizer=identity,
        inputs=[InputEntry(**entry) for entry in spec["inputs"]],
        ignored=spec["ignored"],
        reading=reading,
        profiles=profiles,
    )
    write_receipt(partial, asdict(info))
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    return directory


def _statuses(examples: Examples, first_target: int) -> npt.NDArray[np.str_]:
    """Return what becomes of every example before the trie: shape (num_examples,)."""
    lengths = np.diff(examples.offsets)
    pairs = np.maximum(lengths - first_target, 0)
    trains = np.zeros(examples.num_examples, dtype=np.bool_)
    trains[examples.run_owners[examples.runs[:, 1] > first_target]] = True
    kept = np.where(examples.chats & ~trains, UNTRAINED, KEPT)
    return np.asarray(np.where(lengths == 0, EMPTY, np.where(pairs == 0, SINGLE_TOKEN, kept)))


def _load(staged: Path, spec: dict[str, Any], options: TrieOptions) -> tuple[Examples, Tokenizer]:
    splits = [staged / "splits" / f"{number:05d}" for number in range(len(spec["splits"]))]
    name, bos, eos = spec["tokenizer"]
    if name != "symbols":
        tokenizer = load_tokenizer(name, bos=bos, eos=eos)
        if options.merge == "state" and tokenizer.kind != "none":
            raise UsageError(
                "--merge state",
                f"the {tokenizer.kind} tokenizer: what follows a token depends on all tokens before it",
                "game transitions or given ids, whose next step depends on the state alone",
                hint="leave --merge out: equal prefixes are merged",
            )
        return load_splits(splits), tokenizer
    if options.merge == "state" and spec["options"]["predict"] == "action":
        raise UsageError(
            "--merge state",
            "does not go with --predict action: an action is one node everywhere, whatever was seen before it",
            "prefix keeps what led to it",
            hint="leave --merge out, or --predict next-state",
        )
    symbols, remaps = merge_symbols([read_lines(split / "symbols.jsonl") for split in splits])
    return load_splits(splits, remaps), Symbols(symbols, virtual_root=options.virtual_root == "auto")


def _virtual_root(tokenizer: Tokenizer, options: TrieOptions, examples: Examples) -> tuple[int | None, int]:
    """Return the id of the virtual root, if there is to be one, and the size of the vocabulary."""
    size = tokenizer.vocab_size
    if size is None:  # given ids: the vocabulary is what was given
        given = options.virtual_root or ""
        size = max(int(examples.tokens.max(initial=-1)), int(given) if given.isdecimal() else -1) + 1
    if options.virtual_root is None:
        return None, size
    if options.virtual_root == "auto":
        root = tokenizer.virtual_root_id if tokenizer.virtual_root_id is not None else tokenizer.bos_id
        if root is None:
            raise UsageError(
                "--virtual-root", "the tokenizer has no BOS", "an id of its vocabulary", hint="--virtual-root-id ID"
            )
        return root, size
    root = int(options.virtual_root) if options.virtual_root.isdecimal() else -1
    if not 0 <= root < size:
        raise UsageError("--virtual-root-id", options.virtual_root, f"an id of the vocabulary, 0 to {size - 1:,}")
    return root, size


def _reading(spec: dict[str, Any], receipts: list[dict[str, Any]]) -> dict[str, Any]:
    bad = [entry for receipt in receipts for entry in receipt["bad"]]
    return {
        "files": len(spec["inputs"]),
        "ignored_files": len(spec["ignored"]),
        "records": sum(receipt["records"] for receipt in receipts),
        "bad_records": sum(receipt["bad_records"] for receipt in receipts) + len(spec["skipped"]),
        "bad": (spec["skipped"] + bad)[:20],
        "dropped_transitions": sum(receipt["dropped_transitions"] for receipt in receipts),
        "rejected": sum(receipt["rejected"] for receipt in receipts),
        "formats": _formats(receipts),
        "silent_files": sum(receipt["silent_files"] for receipt in receipts),
        "silent": [name for receipt in receipts for name in receipt["silent"]][:20],
        "stability": _stability(receipts),
    }


def _formats(receipts: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the files and examples of every format."""
    found: dict[str, list[int]] = {}
    for receipt in receipts:
        for name, numbers in receipt["formats"].items():
            found[name] = [old + new for old, new in zip(found.get(name, [0, 0]), numbers, strict=True)]
    return dict(sorted(found.items()))


def _stability(receipts: list[dict[str, Any]]) -> dict[str, Any]:
    total = Stability()
    for receipt in receipts:
        total = total.merge(Stability.from_json(receipt["stability"]))
    return total.to_json()


def _partition_trie(
    examples: Examples,
    chosen: Int64Array,
    root: int | None,
    options: TrieOptions,
    symbols: list[bytes] | None,
    engine: Engine,
) -> tuple[Trie, Int64Array, list[Any]]:
    """Return the trie of some examples, with weights, their end nodes, and Markov conflicts."""
    tokens, offsets = _gather(examples, chosen, root)
    shift = 0 if root is None else 1
    supervision = gather_supervision(examples.runs, examples.run_offsets, examples.weights, chosen, shift)
    lengths = np.diff(offsets)
    ones, index = np.ones(len(chosen), dtype=np.int64), np.arange(len(chosen))
    runs, run_offsets = supervision.clip(index, ones, lengths)
    conflicts: list[Any] = []
    if options.merge == "state" or symbols is not None:
        owners = np.repeat(index, np.diff(run_offsets))
        change = np.zeros(len(tokens) + 1, dtype=np.int64)
        np.add.at(change, offsets[owners] + runs[:, 0], 1)
        np.add.at(change, offsets[owners] + runs[:, 1], -1)
        trains = np.cumsum(change[:-1]) > 0
        weights = np.where(trains, np.repeat(supervision.weights, lengths), 0.0)
        transitions = count_transitions(tokens, offsets, weights, trains)
        if symbols is not None:
            conflicts = [
                [shown_symbol(state), action, [shown_symbol(outcome) for outcome in outcomes]]
                for state, action, outcomes in markov_conflicts(transitions, symbols)
            ]
        if options.merge == "state":
            return merge_states(transitions), np.full(len(chosen), -1, dtype=np.int64), conflicts
    trie, ends = build_trie(tokens, offsets, min_shared=options.min_shared, engine=engine)
    order = np.argsort(ends, kind="stable")
    sorted_runs, sorted_offsets = supervision.clip(index[order], ones, lengths[order])
    starts = trie.depths.astype(np.int64)
    sums = sweep_weights(
        starts,
        starts + np.diff(trie.offsets),
        ends[order],
        sorted_runs,
        sorted_offsets,
        supervision.weights[order],
        engine=engine,
    )
    check_weights(sums)
    return replace(trie, weights=sums), ends, conflicts


def _gather(examples: Examples, chosen: Int64Array, root: int | None) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Return the tokens of some examples end to end, each after the virtual root if there is one."""
    lengths = np.diff(examples.offsets)[chosen]
    if root is None and len(chosen) == examples.num_examples:
        return examples.tokens, examples.offsets
    extra = 0 if root is None else 1
    offsets = np.concatenate(([0], np.cumsum(lengths + extra)))
    tokens = np.empty(int(offsets[-1]), dtype=np.int32)
    bounds = offsets.tolist()
    sources = examples.offsets.tolist()
    for number, example in enumerate(chosen.tolist()):
        if root is not None:
            tokens[bounds[number]] = root
        tokens[bounds[number] + extra : bounds[number + 1]] = examples.tokens[sources[example] : sources[example + 1]]
    return tokens, offsets


def gather_supervision(
    runs: npt.NDArray[np.int32],
    run_offsets: Int64Array,
    weights: npt.NDArray[np.float64],
    chosen: Int64Array,
    shift: int,
) -> Supervision:
    """Return the supervision of some examples, by depth in the trie: a virtual root shifts it by one."""
    sizes = np.diff(run_offsets)[chosen]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    index = np.arange(int(offsets[-1])) + np.repeat(run_offsets[:-1][chosen] - offsets[:-1], sizes)
    return Supervision.of(runs[index].astype(np.int64) + shift, offsets, weights[chosen])


def _report_conflicts(conflicts: list[Any], options: TrieOptions, listener: Listener) -> None:
    if not conflicts or options.merge != "state":
        return
    state, action, outcomes = conflicts[0]
    found = (
        f"{len(conflicts):,} (state, action) pairs lead to more than one next state, "
        f"such as state {_cut(state)} with action {_cut(action)}: {', '.join(_cut(text) for text in outcomes[:3])}"
    )
    if options.strict_markov:
        raise DataError(
            "--strict-markov", found, "one next state for each", hint="use --merge prefix: the graph stays a tree"
        )
    listener.note(
        f"{found}; merging is valid only if the next step depends on the state alone (--merge prefix keeps a tree)"
    )


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
