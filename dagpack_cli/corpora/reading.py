"""Records become examples: tokenised in batches, checked, with nothing depending on the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dagpack_cli.corpora.formats import format_of, kind_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import (
    Chat,
    Document,
    Example,
    Ids,
    Int32Array,
    OnBad,
    Pieces,
    ReadCounts,
    Record,
    Values,
    raise_bad,
)
from dagpack_cli.corpora.sources import Source
from dagpack_cli.errors import DataError, MismatchError
from dagpack_cli.tokenizing import GivenIds, IdArray, SymbolCollector, Symbols, Tokenizer
from dagpack_cli.tokenizing.chat import Piece, PieceEncoder, Template, pieces_of, template_of

__all__ = ["read_examples"]

_BATCH_RECORDS = 1000
_BATCH_CHARACTERS = 4 << 20


def read_examples(
    source: Source,
    tokenizer: Tokenizer | SymbolCollector,
    options: ReadOptions,
    on_bad: OnBad = raise_bad,
    *,
    counts: ReadCounts | None = None,
    batch_records: int = _BATCH_RECORDS,
) -> Iterator[Example]:
    """Yield the examples of one file, in its order.

    Examples of no token (an empty document) and of one (no pair) are yielded too: the caller
    counts them. Memory is O(batch + longest record); of transitions, O(file).

    Args:
        source: the file.
        tokenizer: what encodes it; for transitions a `SymbolCollector`, whose ids are its own,
            or finished `Symbols`.
        options: how records are read.
        on_bad: called for every bad record; where it does not raise, the record is left out.
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

    encoder = _Encoder(source, tokenizer)
    last = -1
    for batch in _batches(format_of(source.format).read(source, options, reject), batch_records):
        for record, (tokens, runs) in zip(batch, encoder.encode(batch), strict=True):
            counts.records += record.place.record != last
            last = record.place.record
            counts.dropped_pairs += record.dropped
            try:
                _check_range(tokens, encoder.vocab_size, str(record.place))
            except DataError as error:
                reject(error)
                continue
            counts.examples += 1
            yield _example_of(record, tokens, runs, source.format)


def _batches(records: Iterator[Record], limit: int) -> Iterator[list[Record]]:
    batch: list[Record] = []
    held = 0
    for record in records:
        batch.append(record)
        held += _size_of(record)
        if len(batch) >= limit or held >= _BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _size_of(record: Record) -> int:
    """Return about how many characters or bytes a record holds."""
    body = record.body
    if isinstance(body, Document):
        return len(body.text)
    if isinstance(body, Chat):
        return sum(len(message.content) + len(message.reasoning) for message in body.messages)
    if isinstance(body, Pieces):
        return sum(len(part.value) for part in body.parts if isinstance(part.value, str))
    return body.ids.nbytes if isinstance(body, Ids) else 8 * len(body.values)


class _Encoder:
    """Encodes the records of one file."""

    def __init__(self, source: Source, tokenizer: Tokenizer | SymbolCollector) -> None:
        kind, name = kind_of(source.format), source.name
        self.vocab_size = tokenizer.vocab_size
        self._values = tokenizer if isinstance(tokenizer, SymbolCollector | Symbols) else None
        self._texts = None if isinstance(tokenizer, SymbolCollector | Symbols | GivenIds) else tokenizer
        self._pieces = None if self._texts is None else PieceEncoder(self._texts)
        self._template: Template | None = None
        if (kind == "symbols") != (self._values is not None) or (kind == "text" and self._texts is None):
            raise MismatchError(
                f"--tokenizer {tokenizer.kind}",
                f"cannot read {name}, which was read as {source.format}",
                f"it needs a tokenizer of {kind}",
                hint="use --tokenizer auto",
            )

    def encode(self, batch: Sequence[Record]) -> Iterator[tuple[IdArray, Int32Array]]:
        """Yield ids and supervised runs of every record of ``batch``, in its order."""
        pieces = [self._pieces_of(record) for record in batch]
        if self._pieces is not None:
            listed = (piece.value for part in pieces for piece in part)
            self._pieces.learn(value for value in listed if isinstance(value, str))
        texts = [record.body.text for record in batch if isinstance(record.body, Document) and record.body.text]
        documents = iter(self._texts.encode_documents(texts) if self._texts is not None else ())
        for record, part in zip(batch, pieces, strict=True):
            body = record.body
            if isinstance(body, Ids):
                yield body.ids, body.runs
            elif isinstance(body, Document):
                yield _all_of(next(documents) if body.text else np.empty(0, dtype=np.int32))
            elif isinstance(body, Values):
                assert self._values is not None
                yield _all_of(self._values.encode_values(body.values))
            else:
                assert self._pieces is not None
                yield self._pieces.encode(part)

    def _pieces_of(self, record: Record) -> list[Piece]:
        body = record.body
        if isinstance(body, Chat):
            assert self._texts is not None
            self._template = self._template or template_of(self._texts)
            return pieces_of(body.messages, self._template, body.tools, supervise_from=body.supervise_from)
        if isinstance(body, Pieces):
            assert self._texts is not None
            first, last = self._texts.bos_id, self._texts.eos_id
            start = [] if first is None else [Piece(first)]
            end = [] if last is None else [Piece(last, supervised=True)]
            return [*start, *body.parts, *end]
        return []


def _all_of(tokens: IdArray) -> tuple[IdArray, Int32Array]:
    """Return tokens with all of them supervised."""
    runs = [[0, len(tokens)]] if len(tokens) else []
    return tokens, np.array(runs, dtype=np.int32).reshape(-1, 2)


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


def _example_of(record: Record, tokens: IdArray, runs: Int32Array, kind: str) -> Example:
    whole = record.start < 0
    return Example(
        tokens=tokens,
        runs=runs,
        weight=record.weight,
        id=record.id,
        record=record.place.record,
        line=record.place.line,
        start=0 if whole else record.start,
        end=len(tokens) if whole else record.end,
        group=record.group,
        kind=kind,
    )
