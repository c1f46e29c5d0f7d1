"""No tokenizer: the ids of pretokenised input are kept as they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from dagpack_cli.errors import MismatchError
from dagpack_cli.tokenizing.base import IdArray, write_saved

__all__ = ["GivenIds"]


class GivenIds:
    """Stands where a tokenizer stands when the input holds token ids already."""

    kind: ClassVar[str] = "none"
    vocab_size: ClassVar[int | None] = None
    virtual_root_id: ClassVar[int | None] = None

    def __init__(self, *, bos_id: int | None = None, eos_id: int | None = None) -> None:
        self.bos_id = bos_id
        self.eos_id = eos_id

    def identity(self) -> dict[str, object]:
        """Return the kind and the ids that options gave a meaning."""
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(b"none").hexdigest(),
            "vocab_size": None,
            "bos": self.bos_id,
            "eos": self.eos_id,
        }

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: nothing here can encode text."""
        raise _no_text()

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: nothing here can encode text."""
        raise _no_text()

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return the ids as numbers, separated by spaces.

        >>> GivenIds().decode([3, 5])
        '3 5'
        """
        return " ".join(map(str, np.asarray(ids, dtype=np.int64).tolist()))

    def save(self, directory: Path) -> None:
        """Write the identity; there is nothing else to keep."""
        write_saved(directory, self.identity())


def _no_text() -> MismatchError:
    return MismatchError(
        "--tokenizer none",
        "cannot encode text",
        "only pretokenised records (input_ids) need no tokenizer",
        hint="use --tokenizer bytes, or the path of a tokenizer.json",
    )
