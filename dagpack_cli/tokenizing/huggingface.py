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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from dagpack_cli.errors import (
    DataError,
    MismatchError,
    shorten,
)
from dagpack_cli.tokenizing.base import IdArray, check_text, with_ends, write_saved
from dagpack_cli.tokenizing.cutting import Control, Controls, Cut, prove_cut
from dagpack_cli.tokenizing.files import TOKENIZER_NAME

if TYPE_CHECKING:
    import tokenizers

__all__ = ["HuggingFaceTokenizer", "Located", "canonical_definition"]

# Stands before a text that is encoded as if something stood before it; private characters, so no text holds it.
_MARK = "\U000f0001dagpack\U000f0001"


@dataclass(frozen=True, slots=True)
class Located:
    """Ids of a text, and which of its characters each stands for.

    Attributes:
        ids: shape (n,), int32.
        starts: shape (n,), int64: first character of each, not falling.
        ends: shape (n,), int64: the one after its last, not falling.
    """

    ids: IdArray
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


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
        self.definition, self._tokenizer, self.vocab_size = _shared(definition, label)
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

    @cached_property
    def controls(self) -> Controls:
        """The special tokens, which are never read out of text."""
        listed = sorted(self._tokenizer.get_added_tokens_decoder().items())
        return Controls(Control(at, item.content, item.lstrip, item.rstrip) for at, item in listed if item.special)

    @cached_property
    def cut(self) -> Cut:
        """Where texts may be cut, proven on a probe (see `cutting`)."""
        return prove_cut(
            self.controls,
            lambda text: self.locate_whole(text).ids.tolist(),
            lambda text: self.encode_pieces([text])[0].tolist(),
            lambda text: self.encode_inner([text])[0].tolist(),
        )

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        """A second tokenizer that knows the mark: adding a token to the first could change how it reads others."""
        import tokenizers

        inner = _load(self.definition, self.label)
        inner.add_tokens([tokenizers.AddedToken(_MARK, special=False, normalized=False)])
        return inner

    def encode_inner(self, texts: Sequence[str]) -> list[IdArray]:
        """Return the ids of every text as one that has something before it.

        Raises:
            DataError: a text holds half of a surrogate pair, or the private mark.
        """
        _check_inner(texts)
        found = self._inner.encode_batch_fast([_MARK + text for text in texts], add_special_tokens=False)
        listed = [encoding.ids for encoding in found]
        return [np.array(ids[self._behind_mark(ids) :], dtype=np.int32) for ids in listed]

    def locate(self, text: str, *, inner: bool = False) -> Located:
        """Return the ids of a text and where they stand in it.

        Args:
            text: the text.
            inner: as one that has something before it.

        Raises:
            DataError: it holds half of a surrogate pair, or, for ``inner``, the private mark.
        """
        if not inner:
            check_text(text, "text")
            return _located(self._tokenizer.encode(text, add_special_tokens=False))
        _check_inner([text])
        found = self._inner.encode(_MARK + text, add_special_tokens=False)
        return _located(found, self._behind_mark(found.ids), len(_MARK))

    def _behind_mark(self, ids: list[int]) -> int:
        mark = self._inner.token_to_id(_MARK)
        assert mark is not None
        return ids.index(mark) + 1

    def locate_whole(self, text: str) -> Located:
        """Return the ids of a text in which special tokens are read, and where they stand in it.

        Raises:
            DataError: it holds half of a surrogate pair.
        """
        check_text(text, "text")
        self._tokenizer.encode_special_tokens = False
        try:
            return _located(self._tokenizer.encode(text, add_special_tokens=False))
        finally:
            self._tokenizer.encode_special_tokens = True

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


def _located(found: tokenizers.Encoding, skipped: int = 0, ahead: int = 0) -> Located:
    offsets = np.array(found.offsets, dtype=np.int64).reshape(-1, 2)[skipped:] - ahead
    # Bytes of one character share its range; what a normaliser added has an empty one.
    starts, ends = np.maximum.accumulate(offsets[:, 0]), np.maximum.accumulate(offsets[:, 1])
    return Located(np.array(found.ids[skipped:], dtype=np.int32), starts, ends)


def _check_inner(texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        check_text(text, f"text {index:,}")
        if _MARK in text:
            raise DataError(f"text {index:,}", "holds a private mark of dagpack", "text without it")


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


@lru_cache(maxsize=1)
def _shared(definition: bytes, label: str) -> tuple[bytes, tokenizers.Tokenizer, int]:
    """Return a definition in canonical form, its tokenizer, and one more than its largest id.

    The stages of a build load the same one in turn, which for 150,000 tokens takes two seconds each time.
    """
    canonical = canonical_definition(definition, label)
    tokenizer = _load(canonical, label)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return canonical, tokenizer, max(vocabulary.values(), default=-1) + 1


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
