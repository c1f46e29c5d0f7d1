"""The table of a build's symbols: Parquet, one row a symbol, in the order of their ids.

Columns are ``id`` (int32, 0 upwards) and ``payload`` (the canonical JSON as text). Payloads of one
game look alike, which zstd sees within a row group: 101 nodes of 64 x 64 cells, 450 KB as text, take 5 KB.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.native import open_native

__all__ = ["SymbolTable", "write_table"]

_ROWS = 8192  # in a row group
_BATCH_ROWS = 256  # that are read at a time
_KEPT_BYTES = 1 << 25  # of what has been read, for those who come back to it
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("payload", pa.large_string(), nullable=False),  # 64-bit offsets: no limit at 2^31 bytes
    ]
)


def write_table(path: Path, symbols: Iterable[bytes]) -> None:
    """Write the table; the bytes depend on the symbols and on pyarrow alone.

    The text of a row group waits in a file that no name leads to. Memory: 8 bytes a row of one.

    Args:
        path: the file.
        symbols: canonical JSON of every id; UTF-8.
    """
    with (
        open_native(path, "wb") as file,
        pq.ParquetWriter(
            file,
            _SCHEMA,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):
        left, done = iter(symbols), 0
        while num := _write_group(writer, itertools.islice(left, _ROWS), done, path.parent):
            done += num


def _write_group(writer: pq.ParquetWriter, symbols: Iterator[bytes], first: int, directory: Path) -> int:
    """Write a row group, whose first symbol has the id ``first``; return how many symbols there were."""
    with TemporaryFile(dir=directory, prefix=".scratch-") as text:
        sizes = [text.write(value) for value in symbols]
        text.flush()
        offsets = np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64))))
        data = np.memmap(text, np.uint8, "r") if offsets[-1] else np.zeros(0, dtype=np.uint8)
        if sizes:
            ids = pa.array(np.arange(first, first + len(sizes), dtype=np.int32))
            payloads = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(data))
            writer.write_table(pa.Table.from_arrays([ids, payloads], schema=_SCHEMA))
    return len(sizes)


class SymbolTable(Sequence[bytes]):
    """The payloads of a table, in the order of their ids; they stay in the file and are read when they are asked for.

    Those that follow one another are read once; to go back takes up to a row group. Memory: some 32 MiB of them.

    Args:
        path: the file.

    Raises:
        DamageError: missing, unreadable, a page checksum that differs, or not such a table; also later.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            if file.schema_arrow.remove_metadata() != _SCHEMA:
                raise DamageError(str(path), f"columns {', '.join(file.schema_arrow.names)}", "id and payload")
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            self._starts = np.concatenate(([0], np.cumsum(np.array(rows, dtype=np.int64))))
            done = 0
            for batch in file.iter_batches(columns=["id"], use_threads=False):
                ids = batch.column(0).to_numpy()
                if not np.array_equal(ids, np.arange(done, done + len(ids))):
                    raise DamageError(str(path), "the ids are not 0, 1, 2 and so on", "one row a symbol, in order")
                done += len(ids)
            self._check_rows(done, len(self))
        self._kept: OrderedDict[int, pa.Array] = OrderedDict()  # by the id of the first
        self._reading: tuple[int, int, Generator[pa.Array]] | None = None  # row group, next id, what comes of it

    def __len__(self) -> int:
        """Return the number of symbols."""
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[bytes]:
        """Yield all payloads, some at a time."""
        for batch in self._batches(range(len(self._starts) - 1)):
            with self._damage():
                values = [value.encode() for value in batch.to_pylist()]
            yield from values

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return one payload, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"symbol {index:,} of {len(self):,}")
        number = index % len(self)
        first = self._read(number)
        with self._damage():
            return bytes(self._kept[first][number - first].as_py().encode())

    def _read(self, number: int) -> int:
        """Keep the payloads around a symbol; return the id of the first of them."""
        for first, batch in self._kept.items():
            if first <= number < first + len(batch):
                self._kept.move_to_end(first)
                return first
        group = int(np.searchsorted(self._starts, number, side="right")) - 1
        if self._reading is None or self._reading[0] != group or self._reading[1] > number:
            self._reading = group, int(self._starts[group]), self._batches(range(group, group + 1))
        _, first, batches = self._reading
        for batch in batches:
            self._reading = group, first + len(batch), batches
            if number < first + len(batch):
                self._kept[first] = batch
                while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > _KEPT_BYTES:
                    self._kept.popitem(last=False)
                return first
            first += len(batch)
        raise AssertionError("a row group is read to its end")

    def _batches(self, groups: range) -> Generator[pa.Array]:
        """Yield the payloads of row groups, some at a time."""
        with self._opened() as file:
            batches = file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=["payload"], use_threads=False)
            done = 0
            for batch in batches:
                done += len(batch)
                yield batch.column(0)
            self._check_rows(done, int(self._starts[groups.stop] - self._starts[groups.start]))

    def _check_rows(self, num: int, expected: int) -> None:
        """Raise where a reader has passed over rows without a word, as it does with some that are damaged."""
        if num != expected:
            raise DamageError(str(self.path), f"{num:,} rows where {expected:,} should be", "a table of symbols")

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with (
            self._damage(),
            open_native(self.path, "rb") as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            yield file

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Say of what cannot be read that it is damage."""
        path = str(self.path)
        try:
            yield
        except FileNotFoundError:
            raise DamageError(path, "is missing", "it was saved with the tokenizer") from None
        except PermissionError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DamageError(path, f"unreadable ({str(error).splitlines()[0]})", "a table of symbols") from None
