"""JSON lines: of examples, sequences and transitions, and of the windows of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import orjson

from dagpack_cli.export.windows import PARTITION_COLUMN, WindowExport

__all__ = ["window_records", "write_lines"]


def write_lines(stream: BinaryIO, records: Iterable[dict[str, Any]]) -> None:
    """Write records as JSON, one a line, and flush. Values may be numpy arrays.

    Raises:
        OSError: the stream cannot be written.
    """
    for record in records:
        stream.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
    stream.flush()


def window_records(export: WindowExport, done: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """Yield every window of an export: an array a column, and ``partition`` where it has that column."""
    for batch in export.batches():
        for window in range(batch.num_windows):
            record: dict[str, Any] = {
                name: lists.values[lists.offsets[window] : lists.offsets[window + 1]]
                for name, lists in batch.columns.items()
            }
            yield record | ({PARTITION_COLUMN: batch.partition} if export.has_partition_column else {})
        done(batch.num_windows)
