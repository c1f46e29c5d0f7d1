"""Real builds of small corpora of token ids, and their windows read back as plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from oracle import Example, Row, Tokens

from dagpack_cli.manifest import IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build
from dagpack_cli.provenance import read_provenance
from dagpack_cli.shards import read_shard

UNMERGED = ("packed", "best-fit", "padded")


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row as a shard has it."""

    input: int
    target: int
    depth: int
    parent: int
    count: int
    segment: int
    weight: float
    owned: bool


@dataclass(frozen=True)
class Window:
    """One window as a shard has it."""

    rows: list[StoredRow]
    num_supervised: int
    weight_sum: float
    attention_edges: int

    def column(self, name: str) -> list[Any]:
        """One field of every row."""
        return [getattr(row, name) for row in self.rows]

    def paths(self) -> list[Tokens]:
        """Each row's tokens from its root's input down to its target, by following parents."""
        paths: list[Tokens] = []
        for row in self.rows:
            paths.append((*(paths[row.parent] if row.parent >= 0 else (row.input,)), row.target))
        return paths

    def named(self, trees: Sequence[Tokens]) -> list[Row]:
        """Name every row as the oracle does, given the trees in the order of their numbers."""
        return [Row(trees[row.segment], path[1:]) for row, path in zip(self.rows, self.paths(), strict=True)]


@dataclass(frozen=True)
class Built:
    """A build, its windows by partition, and its provenance in input order."""

    result: BuildResult
    windows: dict[str, list[Window]]
    provenance: list[dict[str, Any]]

    @property
    def ledger(self) -> dict[str, Any]:
        """The manifest's ledger."""
        return self.result.manifest.ledger

    def of(self, partition: str) -> list[int]:
        """Numbers of the partition's examples, in input order."""
        return [number for number, row in enumerate(self.provenance) if row["partition"] == partition]


def write_examples(corpus: Path, examples: Sequence[Example]) -> None:
    """Write examples as records of ids, labels, weight and id, in two files where there are two."""
    corpus.mkdir()
    lines = []
    for number, example in enumerate(examples):
        labels = [token if at in example.trained else -100 for at, token in enumerate(example.tokens)]
        record: dict[str, Any] = {"input_ids": list(example.tokens), "labels": labels, "weight": example.weight}
        record |= {"id": f"e{number}"} | ({} if example.group is None else {"group": example.group})
        lines.append(json.dumps(record) + "\n")
    half = len(lines) // 2
    for name, part in (("a.jsonl", lines[:half]), ("b.jsonl", lines[half:])):
        if part:
            (corpus / name).write_text("".join(part))


def read_windows(generation: Path, partition: str) -> list[Window]:
    """Return every window of a partition, in order."""
    windows: list[Window] = []
    manifest = Manifest.from_bytes((generation / "manifest.json").read_bytes(), generation)
    for shard in manifest.shards(partition):
        stored = read_shard(generation / shard)
        names = ("inputs", "targets", "depths", "parents", "counts", "segments", "weights", "owned")
        columns = [getattr(stored, name).tolist() for name in names]
        rows = [StoredRow(*values) for values in zip(*columns, strict=True)]
        windows.extend(
            Window(
                rows[stored.row_offsets[at] : stored.row_offsets[at + 1]],
                int(stored.num_supervised[at]),
                float(stored.weight_sum[at]),
                int(stored.attention_edges[at]),
            )
            for at in range(stored.num_windows)
        )
    return windows


@contextmanager
def built(
    corpus: Sequence[Example] | dict[str, str],
    pack: PackOptions,
    trie: TrieOptions | None = None,
    *,
    ingest: IngestOptions | None = None,
    tokenizer: str = "none",
    execution: Execution | None = None,
) -> Iterator[Built]:
    """Build examples, or files of text by name, in a folder that is gone afterwards."""
    with TemporaryDirectory() as folder, mock.patch("os.fsync"):  # nothing here outlives a crash
        source = Path(folder, "corpus")
        if isinstance(corpus, dict):
            source.mkdir()
            for name, text in corpus.items():
                (source / name).write_text(text)
        else:
            write_examples(source, corpus)
        result = build(
            source,
            Path(folder, "out"),
            tokenizer=TokenizerChoice(spec=tokenizer),
            ingest_options=ingest or IngestOptions(),
            trie_options=trie or TrieOptions(),
            pack_options=pack,
            execution=execution or Execution(),
        )
        table = read_provenance(result.path / "examples.parquet").to_pylist()
        windows = {name: read_windows(result.path, name) for name in ("train", "val")}
        yield Built(result, windows, table)
