"""Files that are still being written: how much of one is whole records.

Whoever appends to a file of lines leaves it, most of the time, in the middle of one. What stands behind
the last whole record when the file is listed is left out, and the next build finds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO

from dagpack_cli.corpora.files.json_array import is_array, is_document
from dagpack_cli.corpora.files.json_rows import is_cut
from dagpack_cli.corpora.files.sources import Source, table_kind
from dagpack_cli.corpora.files.streams import archive_kind, open_regular

__all__ = ["STILL_WRITTEN", "line_behind", "whole_records"]

STILL_WRITTEN = "still being written: its last record is left out"

_HEAD = 64 << 10
_BLOCK = 64 << 10


def whole_records(source: Source, *, is_text: bool) -> Source:
    """Return a source that ends with its last whole record.

    A line that ends with a line feed is whole, and so is a last one whose brackets and strings are
    closed; a text is whole but for a character that is cut. Archives are cut where they are read, and
    tables, arrays and objects that fill a file are whole or damaged. Costs a look at the end of the file.

    Raises:
        NoInputError, PermissionDeniedError, DiskError, DataError: it cannot be read any more.
    """
    if table_kind(source.path, source.name):
        return source
    with open_regular(source.path, source.name) as file:
        head = file.read(min(_HEAD, source.size))
        if archive_kind(head[:4]) or (not is_text and (is_array(head) or is_document(head))):
            return source
        size = _whole_text(file, source.size) if is_text else _whole_lines(file, source)
    return replace(source, size=size, unfinished=source.size - size)


def _whole_text(file: BinaryIO, size: int) -> int:
    """Return the size without the first bytes of a character at the end.

    A single byte may be one of another encoding too: it is cut only where what stands before it is
    UTF-8 beyond ASCII.
    """
    start = max(0, size - _BLOCK)
    file.seek(start)
    tail = file.read(size - start)
    for back in range(1, min(3, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:  # the character's first byte, which says how many it has
            length = 4 if 0xF0 <= byte < 0xF8 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC2 <= byte < 0xE0 else 1
            alone = back == 1 and tail[:-1].isascii()
            return size - back if back < length and not alone else size
    return size


def _whole_lines(file: BinaryIO, source: Source) -> int:
    """Return the size without a last line that has no end and is no whole record."""
    tail = b""
    start = source.size
    while start > 0 and len(tail) <= source.limits.max_line_bytes:
        step = min(max(_BLOCK, len(tail)), start)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
        newline = tail.rfind(b"\n")
        if newline >= 0:
            start += newline + 1
            tail = tail[newline + 1 :]
            break
    if len(tail) > source.limits.max_line_bytes:
        return source.size  # The limit is the error of whoever reads it.
    return start if is_cut(tail) else source.size


def line_behind(source: Source) -> int:
    """Return the number of the line that stands behind what is read of a plain file, from 1. O(size)."""
    left, lines = source.size, 1
    with open_regular(source.path, source.name) as file:
        while left > 0 and (data := file.read(min(_BLOCK * 16, left))):
            left -= len(data)
            lines += data.count(b"\n")
    return lines
