"""What reading gives: examples of tokens, and the records they are made from before tokenising."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DagpackError, DataError, Unfinished, shorten
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.chat import Piece
from dagpack_cli.tokenizing.messages import Message

__all__ = [
    "BadRecords",
    "Chat",
    "Document",
    "Example",
    "IdBlock",
    "Ids",
    "OnBad",
    "Pieces",
    "Place",
    "ReadCounts",
    "Record",
    "Values",
    "are_weights",
    "is_weight",
    "raise_bad",
    "read_label",
    "read_weight",
    "refuse",
    "runs_of",
    "shown",
    "shown_keys",
]

Int32Array = npt.NDArray[np.int32]
OnBad = Callable[[DataError], None]

_FIRST_BAD = 20
_FLOAT32_MIN = float(np.finfo(np.float32).tiny)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(slots=True)
class Example:
    """One token sequence with its supervision, its weight and where it came from.

    Attributes:
        tokens: shape (n,), int32; n may be 0 (an empty document) or 1 (no pair).
        runs: shape (r, 2), int32: half-open ranges of positions supervised as targets, sorted,
            disjoint and merged. Position 0 has no context: whoever counts pairs ignores it.
        weight: of the whole example; float32 can hold it.
        id: the record's own, else made of file and line.
        record: 0-based number of the record in its file.
        line: 1-based line where the record starts, 0 where the file has no lines.
        start: first token of the record that is in the example.
        end: one after the last.
        group: what must stay in one partition, None where the record does not say.
        kind: the format it was read as.
        keys: shape (r, 2), int64: the identity of the message each run belongs to, zeros for none;
            of several examples with one key, the first trains it. None where no run has one.
        family: another group it belongs to, None for none.
        chat: it is a conversation, which is dropped and counted where nothing in it is trained.
    """

    tokens: Int32Array
    runs: Int32Array
    weight: float
    id: str
    record: int
    line: int
    start: int
    end: int
    group: str | None
    kind: str
    keys: npt.NDArray[np.int64] | None = None
    family: str | None = None
    chat: bool = False


@dataclass(slots=True)
class IdBlock:
    """Many examples of one file that are alike but for their ids, as columns; k of them.

    Attributes:
        tokens: shape (num_tokens,), int32; end to end.
        lengths: shape (k,), int64.
        runs: shape (num_runs, 2), int32; supervised ranges of an example's own tokens, as in `Example`.
        num_runs: shape (k,), int64.
        weights: shape (k,), float64.
        ids: k ids.
        groups: k groups, None where no example has one.
        first: the number of the first one's record; the others follow.
    """

    tokens: Int32Array
    lengths: npt.NDArray[np.int64]
    runs: Int32Array
    num_runs: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    ids: list[str]
    groups: list[str] | None
    first: int

    def examples(self) -> Iterator[Example]:
        """Yield the examples one by one."""
        stops, run_stops = np.cumsum(self.lengths).tolist(), np.cumsum(self.num_runs).tolist()
        for number, (length, num_runs) in enumerate(zip(self.lengths.tolist(), self.num_runs.tolist(), strict=True)):
            yield Example(
                tokens=self.tokens[stops[number] - length : stops[number]],
                runs=self.runs[run_stops[number] - num_runs : run_stops[number]],
                weight=float(self.weights[number]),
                id=self.ids[number],
                record=self.first + number,
                line=0,
                start=0,
                end=length,
                group=self.groups[number] if self.groups else None,
                kind="pretokenised",
            )


@dataclass(slots=True)
class ReadCounts:
    """What reading went through, added up over every file it is handed along with.

    Attributes:
        records: records read whole.
        examples: examples made of them.
        bad_records: records left out because something was wrong with them.
        dropped_pairs: transitions that a drop rule removed.
        rejected: examples that are only there to be told from the chosen ones: they train nothing.
    """

    records: int = 0
    examples: int = 0
    bad_records: int = 0
    dropped_pairs: int = 0
    rejected: int = 0


class BadRecords:
    """Skips bad records: call it with the error; it counts them and keeps the first twenty.

    Attributes:
        count: how many there were.
        unfinished: how many of them were still being written.
        first: ``(file:line, reason)`` of the first twenty.
    """

    def __init__(self) -> None:
        self.count = 0
        self.unfinished = 0
        self.first: list[tuple[str, str]] = []

    def __call__(self, error: DataError) -> None:
        """Count one bad record."""
        self.count += 1
        self.unfinished += isinstance(error, Unfinished)
        if len(self.first) < _FIRST_BAD:
            self.first.append((error.where, f"{error.found}; {error.expected}" if error.expected else error.found))

    def or_raise(self, error: DataError) -> None:
        """Count a record that is still being written, and raise any other error."""
        if not isinstance(error, Unfinished):
            raise error
        self(error)


def raise_bad(error: DataError) -> None:
    """Stop at the first bad record, but for one that is still being written: the other choice is `BadRecords`."""
    if not isinstance(error, Unfinished):
        raise error


def refuse(error: DagpackError, on_bad: OnBad) -> None:
    """Hand what is wrong with a whole file or folder to ``on_bad``; where that raises, raise the error itself."""
    try:
        on_bad(error if isinstance(error, DataError) else DataError(error.where, error.found, error.expected))
    except DataError:
        raise error from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: its file's name, its number, and its first line (0 for none)."""

    name: str
    record: int
    line: int = 0

    def __str__(self) -> str:
        """Return ``file:line``, or ``file: record n`` where there are no lines."""
        return f"{self.name}:{self.line}" if self.line else f"{self.name}, record {self.record:,}"

    @property
    def id(self) -> str:
        """Return the id of a record that has none of its own."""
        return f"{self.name}:{self.line}" if self.line else f"{self.name}:{self.record}"


Rows = Iterator[tuple[Place, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole text, to stand between BOS and EOS; an empty one becomes no tokens at all."""

    text: str


@dataclass(frozen=True, slots=True)
class Pieces:
    """Texts encoded on their own between BOS and EOS: a prompt and its completion."""

    parts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation; messages before ``supervise_from`` are a prompt.

    ``tools`` are JSON values: what the assistant may call.
    """

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()
    supervise_from: int = 0


@dataclass(frozen=True, slots=True)
class Values:
    """JSON values in canonical bytes, one token each; runs as in `Example`, None for all of them."""

    values: Sequence[bytes]
    runs: Int32Array | None = None


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids that are kept as they are; runs as in `Example`."""

    ids: Int32Array
    runs: Int32Array


@dataclass(slots=True, kw_only=True)
class Record:
    """One example before tokenising.

    ``start`` and ``end`` are -1 where they cover all of it; ``dropped`` counts the transitions
    that a rule removed behind it. ``family`` is another group that this one belongs to: the session
    that this one was forked from. A ``rejected`` answer trains nothing, and is counted.
    """

    place: Place
    body: Document | Pieces | Chat | Values | Ids
    id: str
    weight: float = 1.0
    group: str | None = None
    family: str | None = None
    start: int = -1
    end: int = -1
    dropped: int = 0
    rejected: bool = False


def runs_of(mask: npt.NDArray[np.bool_]) -> Int32Array:
    """Return the half-open runs of True in ``mask``, shape (r, 2). O(n).

    >>> runs_of(np.array([False, True, True, False, True])).tolist()
    [[1, 3], [4, 5]]
    """
    if len(mask) and mask.all():  # nearly every record where nothing says what trains
        return np.array([[0, len(mask)]], dtype=np.int32)
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return edges.astype(np.int32).reshape(-1, 2)


def read_weight(value: Any, place: Place) -> float:
    """Return a record's weight, 1 where it has none.

    Raises:
        DataError: it is no number, not finite, or too large or small for float32.
    """
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(str(place), f'"weight" is {shown(value)}', "a finite number")
    if not is_weight(value):
        expected = f"0, or a magnitude of {_FLOAT32_MIN:.3g} to {_FLOAT32_MAX:.3g}: float32 holds it"
        raise DataError(str(place), f'"weight" is {shown(value)}', expected)
    return float(value)


def is_weight(value: float) -> bool:
    """Tell whether float32 can hold a number: 0, or no NaN, and neither too large nor too small."""
    magnitude = abs(value)
    return magnitude == 0 or _FLOAT32_MIN <= magnitude <= _FLOAT32_MAX


def are_weights(values: npt.NDArray[np.float64]) -> bool:
    """Tell whether `is_weight` holds of all of several numbers."""
    magnitudes = np.abs(values)
    return bool(((magnitudes == 0) | ((magnitudes >= _FLOAT32_MIN) & (magnitudes <= _FLOAT32_MAX))).all())


def read_label(record: dict[str, Any], name: str, place: Place) -> str | None:
    """Return the text or whole number in ``record[name]`` as text, None where there is none.

    Raises:
        DataError: it is something else, or no valid Unicode.
    """
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(str(place), f'"{name}" is {shown(value)}', "a string or a whole number")
    text = str(value)
    check_text(text, str(place))
    return text


def shown(value: Any) -> str:
    """Return a JSON value for a message; of lists and objects, which may be huge or deep, only the size.

    >>> shown([1, 2]), shown({"a": 1}), shown(None), shown("x")
    ('a list of 2', 'an object with "a"', 'null', '"x"')
    """
    if isinstance(value, dict):
        return f"an object with {shown_keys(value)}"
    if isinstance(value, list | tuple | np.ndarray):
        return f"a list of {len(value):,}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shorten(value)


def shown_keys(record: dict[str, Any]) -> str:
    """Return the first eight keys of a record for a message."""
    return ", ".join(shorten(key, 24) for key in list(record)[:8]) or "no fields"
