"""Hugging Face tokenizers: a directory, or a ``tokenizer.json``, through the ``tokenizers`` package.

Two settings stored in such files would change the data: truncation loses tokens and padding adds
some. Both are taken out before the file is loaded, hashed or saved, so a tokenizer that somebody
once called with padding is still the same tokenizer. Special tokens are never read out of text:
``<|im_end|>`` inside a document is data, and only the chat template writes the control token.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import orjson

from dagpack_cli.errors import DiskError, MismatchError, NoInputError, PermissionDeniedError, UsageError, shorten
from dagpack_cli.tokenizing.base import IdArray, check_text, with_ends, write_saved

if TYPE_CHECKING:
    import tokenizers

__all__ = ["TOKENIZER_NAME", "HuggingFaceTokenizer", "find_eos"]

TOKENIZER_NAME = "tokenizer.json"
_SPECIAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` package, without truncation and padding.

    Args:
        definition: the bytes of a ``tokenizer.json``.
        label: how messages name it; never stored.
        eos_id: the id that ends a document, None for none.
        bos_id: the id that starts a document, instead of what the tokenizer's own
            post-processor adds; None for none; ``"default"`` keeps the post-processor's.

    Raises:
        MismatchError: the ``tokenizers`` package is not installed, or cannot load the file.
    """

    kind: ClassVar[str] = "huggingface"
    virtual_root_id: ClassVar[int | None] = None

    def __init__(
        self, definition: bytes, *, label: str, eos_id: int | None, bos_id: int | str | None = "default"
    ) -> None:
        self.label = label
        self.definition = canonical_definition(definition, label)
        self._tokenizer = _load(self.definition, label)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._prefix, self._suffix = self._ends()
        if not isinstance(bos_id, str):
            self._prefix = np.array([] if bos_id is None else [bos_id], dtype=np.int32)
        self.bos_id = int(self._prefix[0]) if len(self._prefix) else None
        self.eos_id = eos_id

    def identity(self) -> dict[str, object]:
        """Return the kind, the hash of the definition, the vocabulary size, BOS and EOS."""
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(self.definition).hexdigest(),
            "vocab_size": self.vocab_size,
            "bos": self.bos_id,
            "eos": self.eos_id,
        }

    def token_to_id(self, token: str) -> int | None:
        """Return the id of one vocabulary entry, None where there is none."""
        return self._tokenizer.token_to_id(token)

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Return every text between the tokenizer's own special tokens, EOS appended unless already last."""
        pieces = self.encode_pieces(texts)
        return [with_ends(ids, self._prefix, self._suffix, self.eos_id) for ids in pieces]

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Return the ids of every text, without any special token.

        Raises:
            DataError: a text holds half of a surrogate pair.
        """
        for index, text in enumerate(texts):
            check_text(text, f"text {index:,}")
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in found]

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return the text of the ids, special tokens included; ids outside the vocabulary are left out."""
        known = np.asarray(ids, dtype=np.int64)
        return str(self._tokenizer.decode(known[(known >= 0) & (known < self.vocab_size)].tolist(), False))

    def save(self, directory: Path) -> None:
        """Write the identity and the canonical ``tokenizer.json``."""
        write_saved(directory, self.identity())
        (directory / TOKENIZER_NAME).write_bytes(self.definition)

    def _ends(self) -> tuple[IdArray, IdArray]:
        """Return the ids that the post-processor puts before and after a document."""
        inner = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(inner) + 1):
            if whole[start : start + len(inner)] == inner:
                ends = whole[:start], whole[start + len(inner) :]
                return np.array(ends[0], dtype=np.int32), np.array(ends[1], dtype=np.int32)
        raise MismatchError(self.label, "its post-processor rewrites the text's own ids", "it may only add some around")


def canonical_definition(definition: bytes, label: str) -> bytes:
    """Return a ``tokenizer.json`` without truncation and padding, keys sorted.

    Raises:
        MismatchError: the bytes are not a JSON object with a model in it.
    """
    try:
        fields = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise MismatchError(label, f"is not a tokenizer.json: {error.msg}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), dict):
        raise MismatchError(label, "is not a tokenizer.json", "an object with a model was expected")
    fields["truncation"] = None
    fields["padding"] = None
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)


def _load(definition: bytes, label: str) -> tokenizers.Tokenizer:
    # Work is spread over processes, each with its own tokenizer: threads inside each would only
    # compete, and a fork after they started can hang. An explicit setting of the user wins.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError:
        raise MismatchError(
            label,
            "the tokenizers package is not installed",
            "it reads Hugging Face tokenizers",
            hint="pip install 'dagpack-cli[hf]'",
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(definition)
    except Exception as error:  # The package raises bare Exception and ValueError for bad files.
        raise MismatchError(label, f"cannot be loaded: {shorten(str(error), 120)}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


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
