"""Text records: ``{"text": ...}``, one document a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Document, OnBad, Place, Record, read_label, read_weight, shown, shown_keys
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text

__all__ = ["NAME", "read", "recognise"]

NAME = "jsonl-text"


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record has its text where the options say."""
    return isinstance(record.get(options.text_field), str)


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one document a record; records without text go to ``on_bad``."""
    columns = (options.text_field, "id", "group", "weight")
    for place, row in read_source_rows(source, on_bad, columns=columns):
        try:
            record = _record_of(row, place, options.text_field)
        except DataError as error:
            on_bad(error)
        else:
            yield record


def _record_of(row: dict[str, Any], place: Place, field: str) -> Record:
    text = row.get(field)
    if not isinstance(text, str):
        found = f'field "{field}" is {shown(text)}' if field in row else f'field "{field}" is missing'
        raise DataError(str(place), found, f"the record has {shown_keys(row)}", hint="name the field with --text-field")
    check_text(text, str(place))
    return Record(
        place=place,
        body=Document(text),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=read_label(row, "group", place),
    )
