"""Plain text and source code: one document a file, its characters exactly as they are but for a BOM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.files.streams import BOM, open_stream
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Document, OnBad, Place, Record
from dagpack_cli.errors import DataError

__all__ = ["NAME", "read", "recognise"]

NAME = "text"


def recognise(_record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return False: text is what is left where there are no records."""
    return False


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield the file as one document; what is no UTF-8 goes to ``on_bad``. Memory is O(file)."""
    try:
        with open_stream(source.path, source.name, size=source.size, limits=source.limits) as stream:
            data = stream.read().removeprefix(BOM)
        text = data.decode("utf-8")
    except DataError as error:
        on_bad(error)
        return
    except UnicodeDecodeError as error:
        on_bad(_not_utf8(source.name, data, error.start))
        return
    yield Record(place=Place(source.name, 0), body=Document(text), id=source.name)


def _not_utf8(name: str, data: bytes, start: int) -> DataError:
    line = data.count(b"\n", 0, start) + 1
    return DataError(
        f"{name}:{line}",
        f"byte {start + 1:,} (0x{data[start]:02X}) is not UTF-8",
        "dagpack reads UTF-8 only",
        hint="convert the file first, or leave it out with --on-error skip",
    )
