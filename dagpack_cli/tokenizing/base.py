"""What every tokenizer promises: text in, int32 ids out, and an identity that a manifest can hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import orjson

from dagpack_cli.errors import DamageError, DataError

__all__ = ["SAVED_NAME", "IdArray", "Tokenizer", "check_text", "read_saved", "with_ends", "write_saved"]

IdArray = npt.NDArray[np.int32]

SAVED_NAME = "tokenizer-identity.json"


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into token ids; every id lies in ``range(vocab_size)``.

    Attributes:
        kind: ``"bytes"``, ``"grid"``, ``"huggingface"``, ``"symbols"`` or ``"none"``.
        vocab_size: one more than the largest id; None where the ids are not ours to know.
        bos_id: the id that starts a whole document, None for none.
        eos_id: the id that ends a whole document, None for none.
        virtual_root_id: an id no text produces, for joining a forest under one root; None for none.
    """

    @property
    def kind(self) -> str:
        """Return which of the five kinds this is."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Return one more than the largest id, or None where it is unknown."""
        ...

    @property
    def bos_id(self) -> int | None:
        """Return the id that starts a document."""
        ...

    @property
    def eos_id(self) -> int | None:
        """Return the id that ends a document."""
        ...

    @property
    def virtual_root_id(self) -> int | None:
        """Return the id reserved for a virtual root."""
        ...

    def identity(self) -> dict[str, object]:
        """Return what tells this tokenizer from any other: JSON values, no paths."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Return the ids of whole documents: BOS as the tokenizer adds it, EOS unless already last."""
        ...

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Return the ids of pieces of text, without any special token."""
        ...

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return text for people to read; what cannot be decoded is replaced."""
        ...

    def save(self, directory: Path) -> None:
        """Write the files that `load_saved` needs into ``directory``: equal tokenizers, equal bytes."""
        ...


def with_ends(ids: IdArray, prefix: IdArray, suffix: IdArray, eos_id: int | None) -> IdArray:
    """Return one document's ids between its special tokens, EOS appended unless it is already last.

    Args:
        ids: shape (n,), int32; the document's own ids.
        prefix: shape (p,), int32; what the tokenizer puts before a document.
        suffix: shape (s,), int32; what it puts after one.
        eos_id: the id to end with, None for none.

    >>> two = np.array([5, 6], dtype=np.int32)
    >>> with_ends(two, two[:0], two[:0], 1)
    array([5, 6, 1], dtype=int32)
    """
    parts = [prefix, ids, suffix]
    last = next((part[-1] for part in reversed(parts) if len(part)), None)
    if eos_id is not None and last != eos_id:
        parts.append(np.array([eos_id], dtype=np.int32))
    return np.concatenate(parts, dtype=np.int32)


def check_text(text: str, where: str) -> None:
    """Raise `DataError` at ``where`` when ``text`` holds half of a surrogate pair, which UTF-8 cannot write.

    A JSON escape of one half without the other parses, but names no character. Cost O(n).
    """
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        raise DataError(
            where,
            f"character {error.start + 1:,} is {code}, half of a surrogate pair",
            "text must be valid Unicode",
            hint="leave the record out with --on-error skip",
        ) from None


def write_saved(directory: Path, fields: dict[str, object]) -> None:
    """Write the small file that says which tokenizer a directory holds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SAVED_NAME).write_bytes(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE))


def read_saved(directory: Path) -> dict[str, Any]:
    """Return what `write_saved` wrote.

    Raises:
        DamageError: there is no tokenizer in ``directory``.
        DamageError: the file is not what dagpack writes.
    """
    path = directory / SAVED_NAME
    try:
        fields = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamageError(str(directory), "holds no saved tokenizer", f"{SAVED_NAME} beside the others") from None
    except orjson.JSONDecodeError:
        raise DamageError(str(path), "is not JSON", "dagpack wrote it as JSON") from None
    if not isinstance(fields, dict) or "kind" not in fields:
        raise DamageError(str(path), "names no kind of tokenizer", "dagpack always writes one")
    return fields
