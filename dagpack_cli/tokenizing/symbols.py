"""Symbols: every distinct JSON value is an id, in the order in which the corpus first shows it.

An input does not know the values of the others, so reading collects local ids (`SymbolCollector`), and
`merge_symbols` later maps them to global ones. First appearance in the canonical order of the inputs, so that
a game's states are numbered as they are played, however many splits or workers read them.

A build keeps the list as a Parquet table, so that whoever trains can turn ids back into states
(`read_symbols`). It reads them from there itself: what is held of a value is never its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from dagpack_cli.errors import DamageError, DataError, MismatchError, shorten
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.tokenizing.base import IdArray, write_saved
from dagpack_cli.tokenizing.repeats import digests, first_equals

__all__ = [
    "SYMBOLS_NAME",
    "SymbolCollector",
    "Symbols",
    "merge_symbols",
    "open_symbols",
    "read_symbols",
    "shown_symbol",
    "store_symbols",
    "symbols_hash",
]

SYMBOLS_NAME = "symbols.parquet"
_MAX_SYMBOLS = 2**31 - 2
_SHOWN_BYTES = 60  # of a value that is shown whole
_SHOWN_FIELDS = 12
_SHOWN_LEVELS = 3  # a node, its state, the fields of that
_SHOWN_LIMIT = 600


class SymbolCollector:
    """Gives the values of one split local ids, in the order in which they appear."""

    kind: ClassVar[str] = "symbols"
    vocab_size: ClassVar[int | None] = None
    bos_id: ClassVar[int | None] = None
    eos_id: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    @property
    def symbols(self) -> list[bytes]:
        """Return the canonical JSON of every value; the local id is the index."""
        return list(self._ids)

    def encode_values(self, values: Sequence[bytes]) -> IdArray:
        """Return the local ids of canonical JSON values, adding those that are new.

        >>> SymbolCollector().encode_values([b'"b"', b'"a"', b'"b"'])
        array([0, 1, 0], dtype=int32)
        """
        ids = self._ids
        found = [ids.setdefault(value, len(ids)) for value in values]
        _check_number(len(ids))
        return np.array(found, dtype=np.int32)


def merge_symbols(values: Iterable[bytes], num: int, zeros: Zeros) -> tuple[IdArray, npt.NDArray[np.bool_]]:
    """Return the id of every value among all distinct ones as they first appear, and which of them are new.

    Values are told apart by digests (see `digests`), so that their texts may stay where they are: each is looked
    at once. Memory O(1), but for what ``zeros`` makes: some 60 bytes a value.

    Args:
        values: of every input, in order: an input's local ids become ids by its part of the result.
        num: how many they are.
        zeros: makes the arrays with an entry a value.

    Returns:
        shape (num,), int32, and shape (num,), bool.

    Raises:
        DataError: more distinct values than there are ids.

    >>> merge_symbols([b'"b"', b'"a"', b'"c"', b'"b"'], 4, np.zeros)
    (array([0, 1, 2, 0], dtype=int32), array([ True,  True,  True, False]))
    """
    firsts = first_equals(digests(values, num, zeros), zeros)
    ids, are_new = zeros(num, np.int32), zeros(num, np.bool_)
    known = 0
    for span in spans(num):
        new = firsts[span] == np.arange(span.start, span.stop)
        last = known + int(np.count_nonzero(new))
        _check_number(last)
        are_new[span] = new
        ids[span][new] = np.arange(known, last)
        ids[span] = ids[firsts[span]]
        known = last
    return ids, are_new


def _check_number(num: int) -> None:
    if num > _MAX_SYMBOLS:
        raise DataError("symbols", f"{num:,} distinct values", f"at most {_MAX_SYMBOLS:,} fit int32 ids")


def read_symbols(path: Path) -> list[bytes]:
    """Return the canonical JSON of every symbol of a build; the id is the index.

    Args:
        path: ``tokenizer/symbols.parquet`` of a build: columns ``id`` and ``payload``.

    Raises:
        DamageError: missing, unreadable, or not a table of symbols.
    """
    return list(open_symbols(path))


def open_symbols(path: Path) -> Sequence[bytes]:
    """Return what `read_symbols` does, but leave it in the file: every symbol is read when it is asked for."""
    from dagpack_cli.tokenizing.symbol_table import SymbolTable  # pyarrow is slow to import

    return SymbolTable(path)


def store_symbols(directory: Path, values: Iterable[bytes], *, virtual_root: bool = False) -> Symbols:
    """Write a list of symbols as a build keeps it, and return the tokenizer that reads them from there.

    Args:
        directory: of the saved tokenizer, which is created; the identity is left to `Symbols.save`.
        values: canonical JSON values, each once; looked at once, and not held.
        virtual_root: as of `Symbols`.
    """
    from dagpack_cli.tokenizing.symbol_table import write_table  # pyarrow is slow to import

    state = hashlib.sha256()
    directory.mkdir(parents=True, exist_ok=True)
    write_table(directory / SYMBOLS_NAME, _hashed(values, state))
    return Symbols(open_symbols(directory / SYMBOLS_NAME), virtual_root=virtual_root, sha256=state.hexdigest())


def symbols_hash(values: Iterable[bytes]) -> str:
    """Return the hash of a list of symbols, one value a line: that of the values, whatever file holds them."""
    state = hashlib.sha256()
    for _ in _hashed(values, state):
        pass
    return state.hexdigest()


def _hashed(values: Iterable[bytes], state: hashlib._Hash) -> Iterator[bytes]:
    for value in values:
        state.update(value)
        state.update(b"\n")
        yield value


def shown_symbol(value: bytes | str) -> str:
    """Return a JSON value for people: what is long in it becomes ``#`` and the start of its SHA-256.

    Equal parts show equal marks, so two states that differ can be told apart without their cells.

    >>> shown_symbol(b'{"action":"up","state":[' + b"0," * 4095 + b"0]}")
    '{"action":"up","state":#cb113f74}'
    """
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if len(data) <= _SHOWN_BYTES:
        return data.decode("utf-8", "replace")
    try:
        text = _shown(orjson.loads(data), _SHOWN_LEVELS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # nested more deeply than this parser goes
        return _mark(data)
    return text if len(text) <= _SHOWN_LIMIT else _mark(data)


def _shown(value: object, levels: int) -> str:
    if levels and isinstance(value, dict) and len(value) <= _SHOWN_FIELDS:
        fields = (f"{_shown(key, 0)}:{_shown(item, levels - 1)}" for key, item in sorted(value.items()))
        return "{" + ",".join(fields) + "}"
    data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return data.decode() if len(data) <= _SHOWN_BYTES else _mark(data)


def _mark(data: bytes) -> str:
    return f"#{hashlib.sha256(data).hexdigest()[:8]}"


class Symbols:
    """The tokenizer of a finished list of symbols.

    Args:
        symbols: canonical JSON values, each once; may stay in a file (see `open_symbols`).
        virtual_root: add one id behind them for a virtual root.
        bos_id: a symbol to treat as the start of a document, None for none.
        eos_id: a symbol to treat as the end of one, None for none.
        sha256: `symbols_hash` of the list where it is known: then nothing is read here.

    Raises:
        DamageError: a value is listed twice; not looked for where the hash is given.
    """

    kind: ClassVar[str] = "symbols"

    def __init__(
        self,
        symbols: Sequence[bytes],
        *,
        virtual_root: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        sha256: str | None = None,
    ) -> None:
        if sha256 is None and len(set(symbols)) < len(symbols):
            raise DamageError("symbols", "a value is listed twice", "every value once")
        self.symbols = symbols
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.virtual_root_id = len(self.symbols) if virtual_root else None
        self.vocab_size = len(self.symbols) + virtual_root
        self._sha256 = symbols_hash(symbols) if sha256 is None else sha256

    def identity(self) -> dict[str, object]:
        """Return the kind, the hash of the list, the vocabulary size and the ids with a meaning."""
        return {
            "kind": self.kind,
            "sha256": self._sha256,
            "vocab_size": self.vocab_size,
            "bos": self.bos_id,
            "eos": self.eos_id,
            "virtual_root": self.virtual_root_id,
        }

    def encode_values(self, values: Sequence[bytes]) -> IdArray:
        """Return the ids of canonical JSON values; all of the list is held from here on.

        Raises:
            DataError: a value is not in the list.
        """
        try:
            return np.array([self._ids[value] for value in values], dtype=np.int32)
        except KeyError as error:
            value = error.args[0].decode("utf-8", "replace")
            raise DataError("symbols", f"{shorten(value)} is not one of the {len(self.symbols):,} symbols") from None

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: symbols stand for JSON values, not for text."""
        raise _no_text()

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: symbols stand for JSON values, not for text."""
        raise _no_text()

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return the JSON of every id, long parts shortened (see `shown_symbol`), separated by spaces.

        >>> Symbols([b'"a"', b'"b"'], virtual_root=True).decode([2, 1])
        '<virtual-root> "b"'
        """
        return " ".join(self._name(token) for token in np.asarray(ids, dtype=np.int64).tolist())

    def save(self, directory: Path) -> None:
        """Write the identity, and unless it is there the list, as a Parquet table of ``id`` and ``payload``."""
        from dagpack_cli.tokenizing.symbol_table import SymbolTable, write_table  # pyarrow is slow to import

        write_saved(directory, self.identity())
        path = directory / SYMBOLS_NAME
        if not (isinstance(self.symbols, SymbolTable) and self.symbols.path == path):
            write_table(path, self.symbols)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {value: index for index, value in enumerate(self.symbols)}

    def _name(self, token: int) -> str:
        if 0 <= token < len(self.symbols):
            return shown_symbol(self.symbols[token])
        return "<virtual-root>" if token == self.virtual_root_id else f"<{token}>"


def _no_text() -> MismatchError:
    return MismatchError(
        "--tokenizer symbols",
        "cannot encode text",
        "every id is one JSON value of a transition record",
        hint="use --tokenizer bytes",
    )
