"""What format a file has, told by its first records or bytes, never by its name."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from dagpack_cli.corpora.datasets import pretokenised, text
from dagpack_cli.corpora.files.growing import STILL_WRITTEN, whole_records
from dagpack_cli.corpora.files.json_array import is_array
from dagpack_cli.corpora.files.json_rows import parse_json, read_texts
from dagpack_cli.corpora.files.limits import Limits
from dagpack_cli.corpora.files.sources import stat_source, table_kind
from dagpack_cli.corpora.files.streams import BOM, head_of, open_stream
from dagpack_cli.corpora.formats import recognise
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, shown_keys
from dagpack_cli.errors import DataError, Unfinished

__all__ = ["format_of_file"]

_HEAD = 64 << 10
_RECORDS = 16
_SPACE = b" \t\r\n"


def format_of_file(path: Path, name: str, options: ReadOptions) -> tuple[str | None, str]:
    """Return the format of a file, or None and why it has none.

    JSON is records where at least half of the first lines that are no comment are objects: a
    damaged line does not turn records into text, an object in prose does not turn text into
    records.

    Raises:
        DataError: the file is a damaged archive, Parquet or Arrow file, or JSON that cannot be read.
        NoInputError, PermissionDeniedError, DiskError: it cannot be read.
    """
    table = table_kind(path, name)
    if table:
        return _structured(_table_rows(table, path, name, options.limits), options)
    with open_stream(path, name, limits=options.limits) as stream:
        head = head_of(stream, _HEAD)
    if options.format is not None:
        return options.format, ""
    damage: list[DataError] = []
    rows, damaged = _json_rows(path, name, head, options.limits, damage.append)
    if rows and len(rows) >= damaged:
        return _structured(rows, options)
    content = head.removeprefix(BOM).lstrip(_SPACE)
    if damage and (is_array(head) or content.startswith(b'{"')):
        # Records that cannot be read are damage, not somebody else's file: the build stops. One that has
        # no end yet is neither.
        if not rows and damaged == 1 and not is_array(head) and _is_open(path, name):
            raise Unfinished(damage[0].where, "its only record is not whole", STILL_WRITTEN)
        raise damage[0]
    if is_array(head) or (content[:1] == b"{" and content[1:].lstrip(_SPACE)[:1] in (b'"', b"}")):
        return None, "JSON, but it cannot be read"
    return _plain(head)


def _table_rows(kind: str, path: Path, name: str, limits: Limits) -> list[dict[str, Any]]:
    if kind == "parquet":
        from dagpack_cli.corpora.files.parquet_rows import first_parquet_rows

        return first_parquet_rows(path, name, _RECORDS, limits, arrays=pretokenised.ARRAYS)
    from dagpack_cli.corpora.files.arrow_rows import first_arrow_rows

    return first_arrow_rows(path, name, _RECORDS, arrays=pretokenised.ARRAYS)


def _is_open(path: Path, name: str) -> bool:
    """Return whether a file ends in the middle of a line that is no whole record."""
    return whole_records(stat_source(path, name, ""), is_text=False).unfinished > 0


def _json_rows(path: Path, name: str, head: bytes, limits: Limits, on_bad: OnBad) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects among the first records of a file, and how many were none."""
    if b"{" not in head:
        return [], 0
    rows: list[dict[str, Any]] = []
    damaged = 0
    for line, record in itertools.islice(read_texts(path, name, on_bad, limits=limits), _RECORDS):
        try:
            value = (
                parse_json(record, f"{name}:{line}", max_depth=limits.max_depth) if record.startswith(b"{") else None
            )
        except DataError as error:
            on_bad(error)
            value = None
        if isinstance(value, dict):
            rows.append(value)
        else:
            damaged += 1
    return rows, damaged


def _structured(rows: list[dict[str, Any]], options: ReadOptions) -> tuple[str | None, str]:
    if options.format is not None:
        return options.format, ""
    for row in rows:
        found = recognise(row, options)
        if found is not None:
            return found, ""
    keys = shown_keys(rows[0]) if rows else "no rows"
    return None, f"no format has such records: {keys}"


def _plain(head: bytes) -> tuple[str | None, str]:
    """Return text for UTF-8 without NUL; a character cut by the end of the head is none of its errors."""
    if b"\0" in head:
        return None, "binary: it holds NUL bytes"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may be cut by the end of the head, or of a file that is being written; a single byte
        # at the end of ASCII is one of another encoding.
        cut = error.start >= len(head) - 3 and error.reason == "unexpected end of data"
        alone = error.start == len(head) - 1 and head[: error.start].isascii()
        if not cut or (alone and len(head) < _HEAD):
            return None, f"neither UTF-8 text nor a known format: byte {error.start + 1:,} is 0x{head[error.start]:02X}"
    return text.NAME, ""
