"""Values in Thrift's compact protocol: what Parquet's page headers and footer are written in.

Only what those need: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["I32", "STRUCT", "TEXT", "Value", "i32", "i64", "items", "struct", "text", "varint"]

Value = tuple[int, bytes]
"""The type of a value, and the value encoded."""
I32, I64, TEXT, LIST, STRUCT = 5, 6, 8, 9, 12
_BYTES = [bytes([number]) for number in range(256)]


def varint(number: int) -> bytes:
    """Return a number from 0 on, seven bits a byte, the lowest first; all bytes but the last have their top bit set."""
    if number < 0x80:
        return _BYTES[number]
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)


def _zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else ~number << 1 | 1)


def i32(number: int) -> Value:
    r"""Return an integer of 32 bits.

    >>> i32(-3)
    (5, b'\x05')
    """
    assert -(1 << 31) <= number < 1 << 31
    return I32, _zigzag(number)


def i64(number: int) -> Value:
    """Return an integer of 64 bits."""
    assert -(1 << 63) <= number < 1 << 63
    return I64, _zigzag(number)


def text(string: str) -> Value:
    """Return a string, as UTF-8."""
    coded = string.encode()
    return TEXT, varint(len(coded)) + coded


def items(kind: int, values: Sequence[Value]) -> Value:
    """Return a list of values of one type, which an empty list has too."""
    assert all(found == kind for found, _ in values)
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return LIST, head + b"".join(coded for _, coded in values)


def struct(fields: Mapping[int, Value]) -> Value:
    """Return a struct, given its fields by their number: rising, by at most 15 from one to the next."""
    coded: list[bytes] = []
    before = 0
    for number, (kind, value) in fields.items():
        assert before < number <= before + 15
        coded += _BYTES[number - before << 4 | kind], value
        before = number
    return STRUCT, b"".join(coded) + b"\0"  # no further field
