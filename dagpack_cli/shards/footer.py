"""The footer of a Parquet shard: its schema, where every column of every row group lies, and its metadata.

Field numbers are those of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import dagpack_cli
from dagpack_cli.shards.columns import Column, Encoding
from dagpack_cli.shards.thrift import I32, STRUCT, TEXT, Value, i32, i64, items, struct, text

__all__ = ["Chunk", "RowGroup", "encode_footer"]

_VERSION = 2  # of the format, whose BYTE_STREAM_SPLIT is
_REQUIRED, _REPEATED = 0, 2
_LIST = {6: i32(3), 10: struct({3: struct({})})}  # a converted type, for readers that know no logical ones, and those
_ZSTD = 6


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a column in a row group.

    Attributes:
        column: whose they are.
        num_values: as Parquet counts them: an empty list is one.
        offset: of the first page in the file.
        size: bytes of all pages.
        uncompressed_size: the same, had nothing been compressed.
    """

    column: Column
    num_values: int
    offset: int
    size: int
    uncompressed_size: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive windows, all columns of which lie together."""

    num_windows: int
    chunks: Sequence[Chunk]


def encode_footer(columns: Sequence[Column], groups: Sequence[RowGroup], metadata: Mapping[str, str]) -> bytes:
    """Return the footer of a file, from its first byte to the one before its own length."""
    fields = {
        1: i32(_VERSION),
        2: items(STRUCT, list(_schema(columns))),
        3: i64(sum(group.num_windows for group in groups)),
        4: items(STRUCT, [_group(group) for group in groups]),
    }
    if metadata:
        pairs = [struct({1: text(key), 2: text(value)}) for key, value in metadata.items()]
        fields[5] = items(STRUCT, pairs)
    return struct(fields | {6: text(f"dagpack version {dagpack_cli.__version__}")})[1]


def _schema(columns: Sequence[Column]) -> Iterator[Value]:
    """Yield the elements of the schema in depth-first order: nothing in it may be null."""
    required, repeated = i32(_REQUIRED), i32(_REPEATED)
    yield struct({3: required, 4: text("schema"), 5: i32(len(columns))})
    for column in columns:
        *groups, name = column.path
        for depth, group in enumerate(groups):
            kind = required if depth == 0 else repeated
            yield struct({3: kind, 4: text(group), 5: i32(1)} | (_LIST if depth == 0 else {}))
        yield struct({1: i32(column.physical_type), 3: required, 4: text(name)})


def _group(group: RowGroup) -> Value:
    return struct(
        {
            1: items(STRUCT, [_chunk(chunk) for chunk in group.chunks]),
            2: i64(sum(chunk.uncompressed_size for chunk in group.chunks)),
            3: i64(group.num_windows),
        }
    )


def _chunk(chunk: Chunk) -> Value:
    about = {
        **_described(chunk.column),
        5: i64(chunk.num_values),
        6: i64(chunk.uncompressed_size),
        7: i64(chunk.size),
        9: i64(chunk.offset),
    }
    return struct({2: i64(0), 3: struct(about)})  # no copy of what stands here lies beside the pages


@cache  # there are dozens of row groups in a file
def _described(column: Column) -> Mapping[int, Value]:
    """Return the fields that are the same in every row group."""
    return {
        1: i32(column.physical_type),
        2: items(I32, [i32(Encoding.RLE), i32(column.encoding)]),
        3: items(TEXT, [text(name) for name in column.path]),
        4: i32(_ZSTD),
    }
