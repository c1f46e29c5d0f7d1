"""Records become examples: tokenised in batches, checked, with nothing depending on the batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from dagpack_cli.corpora.datasets import pretokenised
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.formats import format_of, kind_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import (
    Document,
    Example,
    IdBlock,
    Ids,
    Int32Array,
    OnBad,
    Pieces,
    ReadCounts,
    Record,
    Values,
    raise_bad,
)
from dagpack_cli.corpora.turns import Conversation, Turns
from dagpack_cli.errors import DataError, MismatchError
from dagpack_cli.tokenizing import GivenIds, GridTokenizer, IdArray, SymbolCollector, Symbols, Tokenizer
from dagpack_cli.tokenizing.chat import Piece, PieceEncoder, Template, template_of

__all__ = ["read_examples", "read_items"]

_BATCH_RECORDS = 1000
_BATCH_CHARACTERS = 4 << 20


def read_examples(
    source: Source,
    tokenizer: Tokenizer | SymbolCollector,
    options: ReadOptions,
    on_bad: OnBad = raise_bad,
    *,
    template: Template | None = None,
    counts: ReadCounts | None = None,
    batch_records: int = _BATCH_RECORDS,
) -> Iterator[Example]:
    """Yield the examples of one file, in its order; arguments as `read_items`."""
    for item in read_items(
        source, tokenizer, options, on_bad, template=template, counts=counts, batch_records=batch_records
    ):
        yield from item.examples() if isinstance(item, IdBlock) else (item,)


def read_items(
    source: Source,
    tokenizer: Tokenizer | SymbolCollector,
    options: ReadOptions,
    on_bad: OnBad = raise_bad,
    *,
    template: Template | None = None,
    counts: ReadCounts | None = None,
    batch_records: int = _BATCH_RECORDS,
) -> Iterator[Example | IdBlock]:
    """Yield the examples of one file, in its order; of tables of ids many together where they are plain.

    Examples of no token (an empty document) and of one (no pair) are yielded too: the caller
    counts them. Memory is O(batch + longest record); of transitions, O(file).

    Args:
        source: the file.
        tokenizer: what encodes it; for transitions a `SymbolCollector`, whose ids are its own,
            or finished `Symbols`.
        options: how records are read.
        on_bad: called for every bad record; where it does not raise, the record is left out.
        template: how conversations are written; None: the tokenizer's built-in one.
        counts: added to while reading.
        batch_records: records that are tokenised together; changes nothing but speed.

    Raises:
        DataError: from ``on_bad``, or for a file that cannot be read at all.
        MismatchError: the tokenizer cannot encode what the file holds.
    """
    counts = ReadCounts() if counts is None else counts

    def reject(error: DataError) -> None:
        counts.bad_records += 1
        on_bad(error)

    encoder = _Encoder(source, tokenizer, template, grid_tokens=options.grid_tokens)
    turns = Turns(options)
    found: Iterator[Record | IdBlock] = format_of(source.format).read(source, options, reject)
    if source.format == pretokenised.NAME:
        found = pretokenised.read_blocks(source, options, reject, vocab_size=encoder.vocab_size)
    last = -1
    for is_block, group in itertools.groupby(found, key=lambda item: isinstance(item, IdBlock)):
        if is_block:
            for block in cast("Iterator[IdBlock]", group):
                counts.records += len(block.ids)
                counts.examples += len(block.ids)
                yield block
            continue
        records = cast("Iterator[Record]", group)
        drafts = (_Draft(*example) for record in records for example in turns.examples_of(record))
        for batch in _batches(encoder.rendered(drafts, reject), batch_records):
            for draft, encoded in zip(batch, encoder.encode(batch), strict=True):
                record = draft.record
                counts.records += record.place.record != last
                last = record.place.record
                counts.dropped_pairs += record.dropped
                try:
                    _check_range(encoded.tokens, encoder.vocab_size, str(record.place))
                except DataError as error:
                    reject(error)
                    continue
                counts.examples += 1
                counts.rejected += record.rejected
                yield _example_of(draft, encoded, source.format)


@dataclass(slots=True)
class _Draft:
    """An example to be, with its conversation and its pieces where it has them."""

    record: Record
    conversation: Conversation | None
    pieces: list[Piece] | None = None


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Ids, supervised runs, and the message each run belongs to (None where there are no messages)."""

    tokens: IdArray
    runs: Int32Array
    turns: Int32Array | None = None


def _batches(drafts: Iterator[_Draft], limit: int) -> Iterator[list[_Draft]]:
    batch: list[_Draft] = []
    held = 0
    for draft in drafts:
        batch.append(draft)
        held += _size_of(draft)
        if len(batch) >= limit or held >= _BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _size_of(draft: _Draft) -> int:
    """Return about how many characters or bytes an example holds."""
    body = draft.record.body
    if draft.pieces is not None:
        return sum(len(piece.value) for piece in draft.pieces if isinstance(piece.value, str))
    if isinstance(body, Document):
        return len(body.text)
    if isinstance(body, Ids):
        return body.ids.nbytes
    return 8 * len(body.values) if isinstance(body, Values) else 0


class _Encoder:
    """Encodes the records of one file."""

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer | SymbolCollector,
        template: Template | None,
        *,
        grid_tokens: bool,
    ) -> None:
        kind, name = kind_of(source.format, grid_tokens=grid_tokens), source.name
        self.vocab_size = tokenizer.vocab_size
        self._values = tokenizer if isinstance(tokenizer, SymbolCollector | Symbols) else None
        ready = isinstance(tokenizer, SymbolCollector | Symbols | GivenIds | GridTokenizer)
        self._texts = None if ready else cast(Tokenizer, tokenizer)
        self._pieces = None if self._texts is None else PieceEncoder(self._texts)
        self._template = template
        if (
            (kind == "symbols") != (self._values is not None)
            or (kind == "grid") != isinstance(tokenizer, GridTokenizer)
            or (kind == "text" and self._texts is None)
        ):
            raise MismatchError(
                f"--tokenizer {tokenizer.kind}",
                f"cannot read {name}, which was read as {source.format}",
                f"it needs a tokenizer of {kind}",
                hint="use --tokenizer auto",
            )

    def rendered(self, drafts: Iterator[_Draft], reject: OnBad) -> Iterator[_Draft]:
        """Yield the drafts with their pieces; a conversation that cannot be written goes to ``reject``."""
        for draft in drafts:
            body = draft.record.body
            try:
                if draft.conversation is not None:
                    draft.pieces = self._written(draft.conversation, str(draft.record.place))
                elif isinstance(body, Pieces):
                    draft.pieces = self._between_ends(body)
            except DataError as error:
                if not error.where.startswith(str(draft.record.place)):
                    error.where = f"{draft.record.place}, {error.where}" if error.where else str(draft.record.place)
                reject(error)
            else:
                yield draft

    def encode(self, batch: Sequence[_Draft]) -> Iterator[_Encoded]:
        """Yield ids and supervised runs of every example of ``batch``, in its order."""
        if self._pieces is not None:
            listed = (piece.value for draft in batch for piece in draft.pieces or ())
            self._pieces.learn(value for value in listed if isinstance(value, str))
        bodies = [draft.record.body for draft in batch]
        texts = [body.text for body in bodies if isinstance(body, Document) and body.text]
        documents = iter(self._texts.encode_documents(texts) if self._texts is not None else ())
        for draft, body in zip(batch, bodies, strict=True):
            if isinstance(body, Ids):
                yield _Encoded(body.ids, body.runs)
            elif isinstance(body, Document):
                yield _all_of(next(documents) if body.text else np.empty(0, dtype=np.int32))
            elif isinstance(body, Values):
                assert self._values is not None
                ids = self._values.encode_values(body.values)
                yield _all_of(ids) if body.runs is None else _Encoded(ids, body.runs)
            else:
                assert self._pieces is not None
                assert draft.pieces is not None
                found = self._pieces.encode(draft.pieces)
                yield _Encoded(found.ids, found.runs, found.turns)

    def _written(self, conversation: Conversation, place: str) -> list[Piece]:
        assert self._texts is not None
        if self._template is None:
            self._template = template_of(self._texts)
        if not conversation.messages:
            return []
        return self._template.pieces(conversation.messages, conversation.tools, conversation.targets, place)

    def _between_ends(self, body: Pieces) -> list[Piece]:
        assert self._texts is not None
        first, last = self._texts.bos_id, self._texts.eos_id
        start = [] if first is None else [Piece(first)]
        end = [] if last is None else [Piece(last, supervised=body.parts[-1].supervised)]
        return [*start, *body.parts, *end]


def _all_of(tokens: IdArray) -> _Encoded:
    """Return tokens with all of them supervised."""
    runs = [[0, len(tokens)]] if len(tokens) else []
    return _Encoded(tokens, np.array(runs, dtype=np.int32).reshape(-1, 2))


def _check_range(tokens: IdArray, vocab_size: int | None, where: str) -> None:
    if vocab_size is None or len(tokens) == 0:
        return
    largest = int(tokens.max())
    if largest >= vocab_size:
        raise DataError(
            where,
            f"token id {largest:,} is outside the vocabulary",
            f"0 to {vocab_size - 1:,}",
            hint="name the tokenizer that made the ids with --tokenizer PATH",
        )


def _example_of(draft: _Draft, encoded: _Encoded, kind: str) -> Example:
    record = draft.record
    whole = record.start < 0
    return Example(
        tokens=encoded.tokens,
        runs=encoded.runs,
        weight=record.weight,
        id=record.id,
        record=record.place.record,
        line=record.place.line,
        start=0 if whole else record.start,
        end=len(encoded.tokens) if whole else record.end,
        group=record.group,
        kind=kind,
        keys=_keys_of(draft.conversation, encoded),
        family=record.family,
        chat=draft.conversation is not None and not record.rejected,
    )


def _keys_of(conversation: Conversation | None, encoded: _Encoded) -> npt.NDArray[np.int64] | None:
    """Return the identity of the message of every run, shape (r, 2); None where no message has one."""
    if conversation is None or encoded.turns is None:
        return None
    messages = conversation.messages
    listed = [messages[turn].identity if turn >= 0 else b"" for turn in encoded.turns.tolist()]
    if not any(listed):
        return None
    return np.frombuffer(b"".join(item or bytes(16) for item in listed), dtype="<i8").reshape(-1, 2)
