"""Dedup: the examples of all inputs become one trie a partition, and a table of their provenance."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.claims import join_families, settle_claims
from dagpack_cli.corpora import STILL_WRITTEN
from dagpack_cli.errors import DataError, UsageError
from dagpack_cli.examples import Examples, Segment, load_examples
from dagpack_cli.failpoints import step
from dagpack_cli.lints import sharing_stops
from dagpack_cli.manifest import IngestOptions, InputEntry, Manifest, TrieOptions, fingerprint, parse_options
from dagpack_cli.memory import Scratch, Zeros, give_back, scratch_limit, select, spans
from dagpack_cli.partitions import PARTITIONS, assign_partitions
from dagpack_cli.profile import rows_also_in, trie_profile
from dagpack_cli.provenance import EMPTY, KEPT, SINGLE_TOKEN, STATUSES, UNTRAINED, write_provenance
from dagpack_cli.stages.cache import ReadSource, source_symbols
from dagpack_cli.stages.conflicts import symbol_parts
from dagpack_cli.stages.partition_trie import write_trie
from dagpack_cli.stages.receipts import Listener, read_receipt, write_receipt
from dagpack_cli.storage import sync_tree
from dagpack_cli.tokenizing import Symbols, Tokenizer, load_tokenizer, merge_symbols, store_symbols
from dagpack_cli.tokenizing.stability import Stability
from dagpack_cli.trie import Engine, Trie, open_trie

__all__ = ["TrieInfo", "dedup_sources"]

Int64Array = npt.NDArray[np.int64]
_KEPT, _UNTRAINED = np.int8(STATUSES.index(KEPT)), np.int8(STATUSES.index(UNTRAINED))


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


def dedup_sources(
    staged: Path,
    spec: dict[str, Any],
    sources: Sequence[ReadSource],
    options: TrieOptions,
    *,
    engine: Engine,
    memory: int,
    workers: int,
    listener: Listener,
) -> Path:
    """Build the tries of a staged ingest; return the folder that holds them, complete.

    Args:
        staged: the folder of the staged build.
        spec: of the ingest: tokenizer, options, inputs, fingerprint.
        sources: all inputs, read, in canonical order.
        options: of the trie.
        engine: never changes the result.
        memory: bytes that the build may hold; never changes it either.
        workers: threads that sort; nor do they.
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
    zeros = Scratch(partial, scratch_limit(memory)).zeros
    examples, tokenizer = _load(sources, spec, options, partial / "tokenizer", zeros)
    root, vocab_size = _virtual_root(tokenizer, options, examples)
    with step("tokenizer-write"):
        tokenizer.save(partial / "tokenizer")
        for name, source in spec["chat_template_sources"].items():
            file = "chat_template.jinja" if name == "default" else f"chat_template_{name}.jinja"
            (partial / "tokenizer" / file).write_text(source, encoding="utf-8")
    first_target = 1 if root is None else 0
    given = examples
    statuses = _statuses(given, first_target)
    never = statuses == _UNTRAINED
    if given.has_keys:
        examples = given.with_runs(settle_claims(given.keys, given.run_offsets, zeros), zeros)
        statuses = _statuses(examples, first_target)
    repeated = int(np.count_nonzero((statuses == _UNTRAINED) & ~never))
    reading = _reading(spec, sources) | {"untrained": int(np.count_nonzero(never)), "repeated": repeated}
    parts = np.zeros(examples.num_examples, dtype=np.int8)
    if options.val_fraction:
        parts = assign_partitions(
            examples.sequences,
            examples.runs,
            examples.run_offsets,
            _groups(given),
            first_target=first_target,
            val_fraction=options.val_fraction,
            seed=options.seed,
        )
    end_nodes = zeros(examples.num_examples, np.int64)
    end_nodes[:] = -1
    symbols = symbol_parts(tokenizer.symbols, zeros) if isinstance(tokenizer, Symbols) else None
    profiles: dict[str, Any] = {}
    tries: dict[str, Trie] = {}
    for number, name in enumerate(PARTITIONS):
        chosen = select(
            examples.num_examples,
            lambda span, number=number: (parts[span] == number) & (statuses[span] == _KEPT),  # type: ignore[misc]
            zeros,
        )
        if name == "train" or options.val_fraction:  # empty or not: its examples are in the ledger
            folder = partial / "trie" / name
            with step("trie-write"):
                conflicts = write_trie(
                    examples,
                    chosen,
                    root,
                    options,
                    symbols,
                    folder,
                    end_nodes,
                    engine=engine,
                    memory=memory,
                    workers=workers,
                    zeros=zeros,
                )
            give_back()
            _report_conflicts(conflicts, options, listener)
            trie = open_trie(folder)
            profiles[name] = trie_profile(trie, tokenizer.decode, zeros=zeros) | {"markov_conflicts": conflicts}
            if tokenizer.kind in ("bytes", "huggingface"):
                profiles[name]["sharing_stops"] = sharing_stops(trie, tokenizer.decode, zeros=zeros)
            tries[name] = trie
        listener.progress("dedup", number + 1, len(PARTITIONS))
    # Of several trees that start alike, a path does not say in which one to look for it.
    if "val" in tries and options.merge == "prefix" and options.min_shared == 1:
        profiles["val"]["supervised_rows"] = int(np.count_nonzero(tries["val"].weights))
        profiles["val"]["supervised_rows_also_in_train"] = rows_also_in(tries["val"], tries["train"])
    with step("provenance-write"):
        write_provenance(partial / "examples.parquet", examples, parts, PARTITIONS, statuses, end_nodes)
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
    sync_tree(partial)  # before the receipt that vouches for it
    write_receipt(partial, asdict(info))
    shutil.rmtree(directory, ignore_errors=True)
    with step("trie-rename"):
        partial.rename(directory)
    return directory


def _statuses(examples: Examples, first_target: int) -> npt.NDArray[np.int8]:
    """Return what becomes of every example before the trie, as an index into `STATUSES`: shape (num_examples,)."""
    statuses = np.empty(examples.num_examples, dtype=np.int8)
    for span in spans(examples.num_examples):
        lengths = examples.sequences.lengths[span]
        bounds = examples.run_offsets[span.start : span.stop + 1]
        owners = np.repeat(np.arange(len(lengths)), np.diff(bounds))
        trains = np.zeros(len(lengths), dtype=np.bool_)
        trains[owners[examples.runs[bounds[0] : bounds[-1], 1] > first_target]] = True
        found = np.where(examples.chats[span] & ~trains, _UNTRAINED, _KEPT)
        found[lengths <= first_target] = STATUSES.index(SINGLE_TOKEN)
        found[lengths == 0] = STATUSES.index(EMPTY)
        statuses[span] = found
    return statuses


def _groups(examples: Examples) -> Iterable[str | None]:
    """Return the group of every example, the same for all that the key of a message, a group or a family connects."""
    groups, families = examples.names("group"), examples.names("family")
    if not examples.has_keys and not any(family is not None for family in families):
        return groups
    return join_families(examples.keys, examples.run_owners, list(groups), list(examples.names("family")))


def _load(
    sources: Sequence[ReadSource], spec: dict[str, Any], options: TrieOptions, directory: Path, zeros: Zeros
) -> tuple[Examples, Tokenizer]:
    """Return all examples, and the tokenizer; symbols are written into its directory and stay there."""
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
        return load_examples([_segment(source) for source in sources], zeros), tokenizer
    if options.merge == "state" and spec["options"]["predict"] == "action":
        raise UsageError(
            "--merge state",
            "does not go with --predict action: an action is one node everywhere, whatever was seen before it",
            "prefix keeps what led to it",
            hint="leave --merge out, or --predict next-state",
        )
    symbols = source_symbols(sources)
    ids, are_new = merge_symbols(symbols, len(symbols), zeros)
    with step("symbols-store"):
        distinct = itertools.compress(symbols, are_new)
        tokenizer = store_symbols(directory, distinct, virtual_root=options.virtual_root == "auto")
    ranges = itertools.pairwise(symbols.offsets)
    segments = [_segment(source, ids[low:high]) for source, (low, high) in zip(sources, ranges, strict=True)]
    return load_examples(segments, zeros), tokenizer


def _segment(source: ReadSource, remap: npt.NDArray[np.int32] | None = None) -> Segment:
    return Segment(source.directory, source.facts["first"], source.facts["last"], remap)


def _virtual_root(tokenizer: Tokenizer, options: TrieOptions, examples: Examples) -> tuple[int | None, int]:
    """Return the id of the virtual root, if there is to be one, and the size of the vocabulary."""
    size = tokenizer.vocab_size
    if size is None:  # given ids: the vocabulary is what was given
        given = options.virtual_root or ""
        size = max(examples.sequences.largest(), int(given) if given.isdecimal() else -1) + 1
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


def _reading(spec: dict[str, Any], sources: Sequence[ReadSource]) -> dict[str, Any]:
    """Return what reading counted, over all inputs."""
    facts = [source.facts for source in sources]
    bad = [entry for one in facts for entry in one["bad"]]
    silent = [one["name"] for one in facts if one["first"] == one["last"]]
    unfinished = sum(reason == STILL_WRITTEN for _, reason in spec["ignored"])
    formats: dict[str, list[int]] = {}
    stability = Stability()
    for one in facts:
        files, examples = formats.get(one["format"], [0, 0])
        formats[one["format"]] = [files + 1, examples + one["last"] - one["first"]]
        stability = stability.merge(Stability.from_json(one["stability"]))
    return {
        "files": len(spec["inputs"]),
        "ignored_files": len(spec["ignored"]) - unfinished,
        "unfinished": unfinished + sum(one["unfinished"] for one in facts),
        "records": sum(one["records"] for one in facts),
        "bad_records": sum(one["bad_records"] for one in facts) + len(spec["skipped"]),
        "bad": (spec["skipped"] + bad)[:20],
        "dropped_transitions": sum(one["dropped_transitions"] for one in facts),
        "rejected": sum(one["rejected"] for one in facts),
        "formats": dict(sorted(formats.items())),
        "silent_files": len(silent),
        "silent": silent[:20],
        "stability": stability.to_json(),
    }


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
