"""JSON records of a file: one a line, the elements of one array that fills it, or one object that does.

Which of them it is, the first bytes say, not the name. Both are read as streams, and every
record knows the line it starts on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dagpack_cli.corpora.files.json_array import is_array, is_document, read_document, read_elements
from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.files.streams import ByteStream, head_of, open_stream, read_lines
from dagpack_cli.corpora.records import OnBad, Place, Rows
from dagpack_cli.errors import DataError, shorten

__all__ = ["NotFinite", "canonical_json", "depth_of", "is_cut", "parse_json", "read_rows", "read_texts"]

_PEEK = 64 << 10
_SPACE = b" \t\r\n"
# The fast parser turns whole numbers over 64 bits into floats: lines with 19 digits in a row take
# the slower one. Mapping all digits to one byte finds them at memory speed.
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_LONG_NUMBER = b"0" * 19
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class NotFinite:
    """NaN or an infinity, which Python writes into JSON and JSON does not have.

    Tolerated in fields that nobody reads; whoever needs the value finds that it is no number.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        """Return the literal, for messages."""
        return self.text


def parse_json(data: bytes, where: str, *, max_depth: int = DEFAULT_LIMITS.max_depth) -> Any:
    """Return the value of a JSON text; of duplicate keys the last wins.

    Args:
        data: the text.
        where: how messages name its place.
        max_depth: levels of brackets that are read.

    Raises:
        DataError: it is not UTF-8, not JSON, or nested too deeply.
    """
    if data.count(b"[") + data.count(b"{") > max_depth and depth_of(data) > max_depth:
        raise DataError(
            where,
            "the JSON is nested too deeply",
            f"at most {max_depth:,} levels",
            hint="correct it, allow more with --max-depth, or leave it out with --on-error skip",
        )
    if _LONG_NUMBER not in data.translate(_DIGITS):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass  # It may still hold NaN or a lone surrogate, which only the slower parser lets pass.
    try:
        return json.loads(data.decode("utf-8"), parse_constant=NotFinite)
    except UnicodeDecodeError as error:
        found = f"byte {error.start + 1:,} (0x{data[error.start]:02X}) is not UTF-8"
        hint = "convert the file first, or leave it out with --on-error skip"
        raise DataError(where, found, "dagpack reads UTF-8 only", hint=hint) from None
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at").lower()
        raise DataError(where, f"not valid JSON: {reason} at character {error.pos + 1:,}") from None
    except RecursionError:
        raise DataError(where, "the JSON is nested too deeply", "a few hundred levels can be read") from None
    except ValueError as error:
        raise DataError(where, f"not valid JSON: {shorten(str(error))}") from None


def depth_of(data: bytes) -> int:
    """Return how many levels of brackets a JSON text has. O(n), and nothing recurses.

    >>> depth_of(b'{"a": [1, {"b": "]]]"}]}')
    3
    """
    brackets = np.frombuffer(_STRING.sub(b"", data).translate(None, _NO_BRACKETS), dtype=np.uint8)
    # Of both pairs the opening one has bit 1 set: 0x5B and 0x7B, closed by 0x5D and 0x7D.
    steps = np.where(brackets & 2, 1, -1)
    return int(np.cumsum(steps).max(initial=0))


def is_cut(data: bytes) -> bool:
    """Return whether a JSON record ends before it is complete: inside a string, or with a bracket open.

    >>> is_cut(b'{"a": [1]}'), is_cut(b'{"a": [1]'), is_cut(b'{"a": "}'), is_cut(b"nope")
    (False, True, True, False)
    """
    rest = _STRING.sub(b"", data)
    closed = rest.count(b"]") + rest.count(b"}")
    return b'"' in rest or rest.count(b"[") + rest.count(b"{") > closed


def canonical_json(value: Any, where: str) -> bytes:
    """Return the JSON text of ``value`` that stands for it: keys sorted, no spaces.

    Raises:
        DataError: it holds NaN, an infinity or half of a surrogate pair, or is nested too deeply.

    >>> canonical_json({"b": [1, 2], "a": None}, "x")
    b'{"a":null,"b":[1,2]}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass  # Numbers over 64 bits and deep nesting; the rest fails again below.
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(where, "a string holds half of a surrogate pair", "text must be valid Unicode") from None
    except RecursionError:
        raise DataError(where, "the JSON is nested too deeply", "a few hundred levels can be written") from None
    except (TypeError, ValueError):
        raise DataError(where, "a value holds NaN or an infinity", "JSON has no such number") from None


def read_rows(
    path: Path, name: str, on_bad: OnBad, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> Rows:
    """Yield the JSON objects of a file with their places; what is no object goes to ``on_bad``.

    Args:
        path: the file.
        name: how ids and messages name it.
        on_bad: called for every record that cannot be read.
        size: bytes of the file that are read, as stored; all for None.
        limits: what it may ask for.
    """
    for record, (line, text) in enumerate(read_texts(path, name, on_bad, size=size, limits=limits)):
        place = Place(name, record, line)
        try:
            value = parse_json(text, str(place), max_depth=limits.max_depth)
            if not isinstance(value, dict):
                raise DataError(str(place), f"the record is {_type_name(value)}", "a JSON object")
        except DataError as error:
            on_bad(error)
        else:
            yield place, value


def read_texts(
    path: Path, name: str, on_bad: OnBad, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line where it starts, bytes)`` of every record, not parsed.

    Blank lines and lines that start with ``//`` are no records. Memory is O(longest record).
    """
    with open_stream(path, name, size=size, limits=limits) as stream:
        try:
            head = head_of(stream, _PEEK)
        except DataError as error:
            on_bad(error)
            return
        rest = _Joined(head, stream)
        read = read_elements if is_array(head) else read_document if is_document(head) else _lines
        yield from read(rest, name, on_bad, limit=limits.max_line_bytes)


class _Joined:
    """A stream with its first bytes put back."""

    def __init__(self, head: bytes, stream: ByteStream) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._stream.read(size)


def _lines(stream: ByteStream, name: str, on_bad: OnBad, *, limit: int) -> Iterator[tuple[int, bytes]]:
    for number, line in read_lines(stream, name, on_bad, limit=limit):
        text = line.strip(_SPACE)
        if text and not text.startswith(b"//"):
            yield number, text


def _type_name(value: Any) -> str:
    """Return what JSON calls the type of ``value``, with its article."""
    names = {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
