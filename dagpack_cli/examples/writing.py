"""Write splits: of examples as they are read, and of parts of other splits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.corpora import Example, IdBlock
from dagpack_cli.examples.files import COLUMNS, META_FILE, STAGED
from dagpack_cli.examples.splits import Segment, Split, joined_segments, read_meta
from dagpack_cli.native import open_native

__all__ = ["SplitWriter", "copy_examples"]

_META_ROWS = 1 << 16  # that are in memory before they are written


class SplitWriter:
    """Write the examples of one split; everything goes to disk as it comes, in bounded memory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.num_examples = 0
        with ExitStack() as stack:  # a full disk may refuse any of them
            self._files = {name: stack.enter_context((directory / name).open("wb")) for name in COLUMNS}
            meta_file = stack.enter_context(open_native(directory / META_FILE, "wb"))
            self._meta = stack.enter_context(pq.ParquetWriter(meta_file, STAGED, compression="zstd"))
            self._opened = stack.pop_all()
        self._rows: dict[str, list[Any]] = {name: [] for name in STAGED.names}
        self._tables: list[pa.Table] = []

    def add(self, example: Example, file: str) -> None:
        """Append one example read from the input named ``file``."""
        num_runs = len(example.runs)
        parts = (
            np.ascontiguousarray(example.tokens, dtype="<i4").data,
            np.ascontiguousarray(example.runs, dtype="<i4").data,
            bytes(16 * num_runs) if example.keys is None else np.ascontiguousarray(example.keys, dtype="<i8").data,
            len(example.tokens).to_bytes(8, "little"),
            num_runs.to_bytes(8, "little"),
        )
        for file_of, part in zip(self._files.values(), parts, strict=True):
            file_of.write(part)
        values = (
            example.id,
            file,
            example.record,
            example.line,
            example.start,
            example.end,
            example.group,
            example.weight,
            example.family,
            example.chat,
        )
        for column, value in zip(self._rows.values(), values, strict=True):
            column.append(value)
        self.num_examples += 1
        if len(self._rows["id"]) >= _META_ROWS:
            self._flush()

    def add_block(self, block: IdBlock, file: str) -> None:
        """Append many examples read from the input named ``file``."""
        keys = np.zeros((len(block.runs), 2), dtype="<i8")
        arrays = block.tokens, block.runs, keys, block.lengths, block.num_runs
        for (name, dtype), array in zip(COLUMNS.items(), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data)
        num = len(block.ids)
        columns = {
            "id": block.ids,
            "file": pa.repeat(pa.scalar(file, pa.large_string()), num),
            "record": np.arange(block.first, block.first + num),
            "line": np.zeros(num, dtype=np.int64),
            "start": np.zeros(num, dtype=np.int64),
            "end": block.lengths,
            "group": pa.nulls(num, pa.large_string()) if block.groups is None else block.groups,
            "weight": block.weights,
            "family": pa.nulls(num, pa.large_string()),
            "chat": np.zeros(num, dtype=bool),
        }
        self._take_rows()
        self._tables.append(pa.table(columns, schema=STAGED))
        self.num_examples += num
        if sum(table.num_rows for table in self._tables) >= _META_ROWS:
            self._flush()

    def copy(self, split: Split, segment: Segment) -> None:
        """Append examples of another split."""
        inside = slice(split.run_offset(segment.first), split.run_offset(segment.last))
        arrays = (
            split.tokens[split.offset(segment.first) : split.offset(segment.last)],
            split.runs[inside],
            split.keys[inside],
            split.lengths[segment.first : segment.last],
            split.num_runs[segment.first : segment.last],
        )
        for (name, dtype), array in zip(COLUMNS.items(), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data)
        self._flush()
        for table in read_meta([segment], STAGED.names):
            self._tables.append(table)
            self._flush()
        self.num_examples += segment.last - segment.first

    def _take_rows(self) -> None:
        if self._rows["id"]:
            self._tables.append(pa.table(self._rows, schema=STAGED))
            self._rows = {name: [] for name in STAGED.names}

    def _flush(self) -> None:
        self._take_rows()
        if self._tables:
            self._meta.write_table(pa.concat_tables(self._tables).combine_chunks())
            self._tables = []

    def __enter__(self) -> SplitWriter:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finish the split; after a failure only let its files go."""
        if kind is None:
            self.close()
            return
        with suppress(Exception):  # the failure that is on its way says more
            self._opened.close()

    def close(self) -> None:
        """Finish the split; all files are let go, also where one of them cannot be finished."""
        with self._opened:
            self._flush()


def copy_examples(segments: Sequence[Segment], directory: Path) -> None:
    """Write the examples of segments as one split; their symbols stay the segments' own. Memory: one segment."""
    with SplitWriter(directory) as writer:
        for segment in joined_segments(segments):
            writer.copy(Split(segment.directory), segment)
