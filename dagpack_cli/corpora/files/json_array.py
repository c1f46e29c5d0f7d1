"""One JSON array or object that fills a file, read as a stream: elements, cut out by their brackets.

Only strings and brackets matter for where an element ends, so nothing is parsed here and nothing
recurses; a damaged element is found by whoever parses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS
from dagpack_cli.corpora.files.streams import BOM, ByteStream, over_limit
from dagpack_cli.corpora.records import OnBad
from dagpack_cli.errors import DataError

__all__ = ["is_array", "is_document", "read_document", "read_elements"]

_CHUNK = 1 << 20
_SPACE = b" \t\r\n"
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_DEEP = re.compile(rb'["\[\]{}]')
_SHALLOW = re.compile(rb'["\[\]{},]')


def is_array(head: bytes) -> bool:
    """Return whether a file that starts with ``head`` is one JSON array of objects.

    >>> is_array(b' [  {"a"'), is_array(b"[1] a footnote")
    (True, False)
    """
    text = head.removeprefix(BOM).lstrip(_SPACE)
    return text.startswith(b"[") and text[1:].lstrip(_SPACE)[:1] in (b"{", b"]")


def is_document(head: bytes) -> bool:
    r"""Return whether a file that starts with ``head`` is one JSON object written over several lines.

    Its bracket stands alone on the first line, as everything that indents JSON writes it: a line
    of records that was cut is not taken for one.

    >>> is_document(b'{\n "a": 1\n}'), is_document(b'{"a": 1}\n{"a": 2}'), is_document(b'{"a": [\n1')
    (True, False, False)
    """
    text = head.removeprefix(BOM).lstrip(_SPACE)
    if not text.startswith(b"{") or text[1:].lstrip(_SPACE)[:1] not in (b'"', b"}"):
        return False
    first, line_end, _ = text.partition(b"\n")
    return bool(line_end) and first.rstrip(_SPACE) == b"{"


class _Bracketed:
    """A stream between brackets, so that the one object in it is the one element of an array."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._left = [b"]", b"["]

    def read(self, size: int = -1, /) -> bytes:
        if len(self._left) == 2:
            return self._left.pop()
        return self._stream.read(size) or (self._left.pop() if self._left else b"")


def read_document(
    stream: ByteStream, name: str, on_bad: OnBad, *, limit: int = DEFAULT_LIMITS.max_line_bytes
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line where it starts, text)`` of the object that fills ``stream``. Memory is O(limit)."""
    yield from read_elements(_Bracketed(stream), name, on_bad, limit=limit)


class _Scanner:
    """Finds where elements end, in a buffer that grows at its end and is cut at its start."""

    def __init__(self) -> None:
        self.position = 0  # The first byte that was not looked at.
        self.start = 0  # Where the element that is open starts.
        self.depth = 0
        self.ended = False
        self._in_string = False

    def scan(self, buffer: bytearray) -> Iterator[tuple[int, int]]:
        """Yield the half-open range of every element that ends in the new part of ``buffer``."""
        while self.position < len(buffer) and not self.ended:
            if self._in_string:
                match = _IN_STRING.match(buffer, self.position)
                self.position = match.end() if match else self.position
                if self.position >= len(buffer) or buffer[self.position] != ord('"'):
                    return  # The string, or an escape in it, goes on behind the buffer.
                self.position += 1
                self._in_string = False
                continue
            match = (_DEEP if self.depth > 1 else _SHALLOW).search(buffer, self.position)
            if match is None:
                self.position = len(buffer)
                return
            self.position = match.end()
            if self._closes(buffer[match.start()]):
                yield self.start, match.start()
                self.start = self.position

    def _closes(self, token: int) -> bool:
        """Return whether the structural byte ends an element, after stepping over it."""
        if token == ord('"'):
            self._in_string = True
        elif token in b"[{":
            self.depth += 1
            if self.depth == 1:
                self.start = self.position
        elif token in b"]}":
            self.depth -= 1
            self.ended = self.depth <= 0
            return self.ended
        return token == ord(",")

    def forget(self, size: int) -> None:
        """Step back after the first ``size`` bytes of the buffer were cut off."""
        self.position -= size
        self.start -= size


def read_elements(
    stream: ByteStream, name: str, on_bad: OnBad, *, limit: int = DEFAULT_LIMITS.max_line_bytes, chunk: int = _CHUNK
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line where it starts, text)`` of every element of the array that fills ``stream``.

    An element over ``limit`` bytes, an array that is not closed and what follows one go to
    ``on_bad``, and end the reading. Memory is O(longest element).
    """
    scanner, buffer = _Scanner(), bytearray()
    line = first = 1
    while True:
        try:
            data = stream.read(chunk)
        except DataError as error:
            on_bad(type(error)(f"{name}:{line}", error.found, error.expected, hint=error.hint))
            return
        buffer += data
        counted = 0
        for begin, end in scanner.scan(buffer):
            if end - begin > limit:
                on_bad(over_limit(f"{name}:{line}", "record", limit))
                return
            text = bytes(buffer[begin:end])
            content = text.lstrip(_SPACE)
            at = end - len(content)
            line += buffer.count(b"\n", counted, at)
            counted = at
            if content or not (first and scanner.ended):
                yield line, content.rstrip(_SPACE)
            first = 0
        line += buffer.count(b"\n", counted, scanner.start)
        del buffer[: scanner.start]
        scanner.forget(scanner.start)
        if scanner.ended and buffer.strip(_SPACE):
            on_bad(DataError(f"{name}:{line}", "there is text behind the array", "one array fills the whole file"))
            return
        if len(buffer) > limit:
            on_bad(over_limit(f"{name}:{line}", "record", limit))
            return
        if not data:
            break
    if not scanner.ended:
        on_bad(DataError(f"{name}:{line}", "the JSON is not closed", "the file may be truncated"))
