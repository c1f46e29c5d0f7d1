"""The built-in byte tokenizer: 266 ids, no files, lossless for every text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from dagpack_cli.tokenizing.base import IdArray, check_text, with_ends, write_saved

__all__ = [
    "ASSISTANT",
    "BOS",
    "END_OF_TURN",
    "EOS",
    "FIRST_BYTE",
    "SYSTEM",
    "THINKING",
    "TOOL",
    "TOOL_CALL",
    "USER",
    "VIRTUAL_ROOT",
    "VOCAB_SIZE",
    "ByteTokenizer",
]

BOS, EOS, FIRST_BYTE = 0, 1, 2
SYSTEM, USER, ASSISTANT, TOOL, END_OF_TURN, TOOL_CALL, THINKING, VIRTUAL_ROOT = range(258, 266)
VOCAB_SIZE = 266

_NAMES = {
    BOS: "<bos>",
    EOS: "<eos>",
    SYSTEM: "<system>",
    USER: "<user>",
    ASSISTANT: "<assistant>",
    TOOL: "<tool>",
    END_OF_TURN: "<end-of-turn>",
    TOOL_CALL: "<tool-call>",
    THINKING: "<thinking>",
    VIRTUAL_ROOT: "<virtual-root>",
}
_DEFINITION = f"bytes v1: byte b is b + {FIRST_BYTE}; {sorted(_NAMES.items())}"
_NOTHING = np.empty(0, dtype=np.int32)


class ByteTokenizer:
    """Byte b of the UTF-8 text is id b + 2; 0 and 1 are BOS and EOS, 258 to 265 structure.

    >>> ByteTokenizer().encode_documents(["ab"])[0].tolist()
    [0, 99, 100, 1]
    """

    kind: ClassVar[str] = "bytes"
    vocab_size: ClassVar[int] = VOCAB_SIZE
    virtual_root_id: ClassVar[int] = VIRTUAL_ROOT

    def __init__(self, *, bos_id: int | None = BOS, eos_id: int | None = EOS) -> None:
        self.bos_id = bos_id
        self.eos_id = eos_id
        self._prefix = _NOTHING if bos_id is None else np.array([bos_id], dtype=np.int32)

    def identity(self) -> dict[str, object]:
        """Return the kind, the hash of the id layout, the vocabulary size, BOS and EOS."""
        digest = hashlib.sha256(_DEFINITION.encode()).hexdigest()
        return {
            "kind": self.kind,
            "sha256": digest,
            "vocab_size": VOCAB_SIZE,
            "bos": self.bos_id,
            "eos": self.eos_id,
        }

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Return BOS, the bytes and EOS of every text."""
        return [with_ends(ids, self._prefix, _NOTHING, self.eos_id) for ids in self.encode_pieces(texts)]

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Return the bytes of every text as ids, nothing else.

        Raises:
            DataError: a text holds half of a surrogate pair.
        """
        for index, text in enumerate(texts):
            check_text(text, f"text {index:,}")
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32) + np.int32(2) for text in texts]

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return the bytes as text, structural ids as names in angle brackets.

        >>> ByteTokenizer().decode([0, 259, 106, 107, 262])
        '<bos><user>hi<end-of-turn>'
        """
        parts: list[bytes] = []
        for token in np.asarray(ids, dtype=np.int64).tolist():
            if FIRST_BYTE <= token < SYSTEM:
                parts.append(bytes((token - FIRST_BYTE,)))
            else:
                parts.append(_NAMES.get(token, f"<{token}>").encode())
        return b"".join(parts).decode("utf-8", "replace")

    def save(self, directory: Path) -> None:
        """Write the identity; there is nothing else to keep."""
        write_saved(directory, self.identity())
