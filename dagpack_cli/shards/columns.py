"""The columns of a Parquet shard: lists of a window's rows, and numbers a window."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from dagpack_cli.shards.window import ROW_COLUMNS

__all__ = ["COLUMNS", "SCALARS", "Column", "Encoding", "PhysicalType"]


class PhysicalType(IntEnum):
    """Parquet's own numbers of its types, those that shards use."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 4
    DOUBLE = 5


class Encoding(IntEnum):
    """Parquet's own numbers of its encodings, those that shards use."""

    PLAIN = 0
    RLE = 3
    BYTE_STREAM_SPLIT = 9


_PHYSICAL: dict[type[np.generic], PhysicalType] = {
    np.bool_: PhysicalType.BOOLEAN,
    np.int32: PhysicalType.INT32,
    np.int64: PhysicalType.INT64,
    np.float32: PhysicalType.FLOAT,
    np.float64: PhysicalType.DOUBLE,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: a list of ``dtype`` a window, or one value of it."""

    name: str
    dtype: type[np.generic]
    is_list: bool

    @property
    def physical_type(self) -> PhysicalType:
        """The type of its values in the file."""
        return _PHYSICAL[self.dtype]

    @property
    def encoding(self) -> Encoding:
        """How its values are written: the numbers of a window are too few for more than the plain way."""
        return Encoding.BYTE_STREAM_SPLIT if self.is_list and self.dtype is not np.bool_ else Encoding.PLAIN

    @property
    def path(self) -> tuple[str, ...]:
        """The names from the root of the schema down to its values."""
        return (self.name, "list", "element") if self.is_list else (self.name,)


SCALARS: dict[str, type[np.generic]] = {
    "num_rows": np.int32,
    "num_supervised": np.int64,
    "weight_sum": np.float64,
    "attention_edges": np.int64,
}
"""The numbers of a window."""
COLUMNS = (
    *(Column(name, dtype, True) for name, dtype in ROW_COLUMNS.items()),
    *(Column(name, dtype, False) for name, dtype in SCALARS.items()),
)
"""All columns, in the order in which they stand in a shard."""
