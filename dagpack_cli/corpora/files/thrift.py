"""Thrift's compact encoding, read into plain dictionaries: as much of it as footers of Parquet use.

What is read comes from anywhere: no count is believed that the bytes behind it cannot hold, and nesting ends.

Source: the compact protocol, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

__all__ = ["read_struct"]

_DEEPEST = 32
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class _Reader:
    """The bytes of a struct, and how far they have been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError("structs are nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._count())
        if kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._count()
            self._check(size)
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == _MAP:
            return self._map(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"type {kind} is none of the encoding's")

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        size = self._count()
        if size == 0:
            return []
        kinds = self._byte()
        self._check(size)
        return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(size)]

    def _check(self, size: int) -> None:
        """Refuse more elements than there are bytes: each takes one at least."""
        if size > len(self._data) - self._at:
            raise ValueError("it ends before what it announces")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, size: int) -> bytes:
        self._check(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def _count(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._count()
        return (value >> 1) ^ -(value & 1)


def read_struct(data: bytes) -> dict[int, Any]:
    """Return the struct that ``data`` begins with, its fields by number.

    Lists are lists, maps lists of pairs, strings bytes.

    Raises:
        ValueError: it is none. O(len(data)).

    >>> read_struct(bytes([0x15, 0x0A, 0x19, 0x25, 2, 4, 0]))
    {1: 5, 2: [1, 2]}
    """
    return _Reader(data).struct(0)
