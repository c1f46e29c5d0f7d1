"""What agents' messages are made of: texts, arguments of calls, and stand-ins for what is no text."""

from __future__ import annotations

from typing import Any

from dagpack_cli.corpora.files.json_rows import parse_json
from dagpack_cli.corpora.records import shown
from dagpack_cli.errors import DataError, shorten
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import json_text

__all__ = ["arguments_of", "object_of", "optional_text", "placeholder_of", "text_of", "written_arguments"]


def text_of(record: dict[str, Any], name: str, where: str) -> str:
    """Return the text in ``record[name]``.

    Raises:
        DataError: it is no text, or no valid Unicode.
    """
    value = record.get(name)
    if not isinstance(value, str):
        raise DataError(where, f'"{name}" is {shown(value)}', "a string")
    check_text(value, where)
    return value


def optional_text(record: dict[str, Any], name: str, where: str) -> str:
    """Return the text in ``record[name]``, empty where there is none.

    Raises:
        DataError: it is something else, or no valid Unicode.
    """
    return "" if record.get(name) is None else text_of(record, name, where)


def object_of(value: Any, name: str, where: str) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(value, dict):
        raise DataError(where, f'"{name}" is {shown(value)}', "an object")
    return value


def arguments_of(value: Any, where: str) -> str:
    """Return the arguments of a call as JSON text; none are an empty object.

    Raises:
        DataError: they are no JSON value that UTF-8 can write.
    """
    try:
        text = json_text({} if value is None else value)
    except ValueError as error:
        raise DataError(where, f"arguments cannot be written as JSON: {shorten(str(error))}") from None
    check_text(text, where)
    return text


def written_arguments(text: str, where: str) -> str:
    """Return arguments that a model wrote as JSON text; what is no JSON stays its text, as a JSON string.

    A model may write broken JSON: that is what it said, not damage of the file.

    Raises:
        DataError: the text is no valid Unicode, or a value in it cannot be written.

    >>> written_arguments('{"b":1, "a":2}', "x"), written_arguments("ls -l", "x")
    ('{"b": 1, "a": 2}', '"ls -l"')
    """
    check_text(text, where)
    if not text.strip():
        return "{}"
    try:
        return arguments_of(parse_json(text.encode("utf-8"), where), where)
    except DataError:
        return json_text(text)


def placeholder_of(kind: str, media_type: object = None) -> str:
    """Return what stands in a text for an image, a document or another thing that is no text.

    >>> placeholder_of("image", "image/png"), placeholder_of("document")
    ('[image: image/png]', '[document]')
    """
    known = isinstance(media_type, str) and media_type.isascii() and media_type.isprintable()
    return f"[{kind}: {str(media_type)[:64]}]" if known and media_type else f"[{kind}]"
