"""The files of a Hugging Face tokenizer: its definition, and those beside it that name the EOS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from dagpack_cli.errors import DiskError, NoInputError, PermissionDeniedError, UsageError

__all__ = ["TOKENIZER_NAME", "find_eos", "read_definition"]

TOKENIZER_NAME = "tokenizer.json"
_SPECIAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")


def read_definition(path: Path) -> tuple[Path, bytes]:
    """Return the path and bytes of the ``tokenizer.json`` that ``path`` is or holds.

    Raises:
        NoInputError: there is none.
        PermissionDeniedError, DiskError: it cannot be read.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    try:
        return file, file.read_bytes()
    except FileNotFoundError:
        found = f"holds no {TOKENIZER_NAME}" if path.is_dir() else "does not exist"
        raise NoInputError(
            f"--tokenizer {path}", found, "bytes, none, symbols, a tokenizer.json or its directory"
        ) from None
    except PermissionError:
        raise PermissionDeniedError(str(file), "cannot be read") from None
    except OSError as error:
        raise DiskError(str(file), f"reading failed: {error.strerror or error}") from None


def find_eos(directory: Path, vocabulary_id: Any) -> int:
    """Return the EOS id that the files beside a ``tokenizer.json`` name.

    Args:
        directory: where the files are.
        vocabulary_id: maps a token to its id or None.

    Raises:
        UsageError: no file names one that the vocabulary has.
    """
    for name in _SPECIAL_FILES:
        try:
            fields = orjson.loads((directory / name).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(fields, dict):
            found = _eos_of(fields, vocabulary_id)
            if found is not None:
                return found
    raise UsageError(
        f"--tokenizer {directory}",
        "no EOS is known",
        f"none of {', '.join(_SPECIAL_FILES)} names one",
        hint="give its id with --eos ID, or --eos none",
    )


def _eos_of(fields: dict[str, Any], vocabulary_id: Any) -> int | None:
    token = fields.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        found: int | None = vocabulary_id(token)
        return found
    number = fields.get("eos_token_id")
    if isinstance(number, list) and number:
        number = number[0]
    return number if isinstance(number, int) and not isinstance(number, bool) else None
