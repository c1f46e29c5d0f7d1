"""Sessions are trees: entries that name their parent, the paths to the leaves, and who a message is.

A message that many leaves or fork files carry has one *identity*; the first example in canonical
order that carries it trains it. Everything here is iterative: a chain may be as long as a file.

What follows a line that cannot be read was said in a context that nobody knows any more, so a
session is read up to there. Its end may also be a line that is being written just now.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.files.streams import BOM
from dagpack_cli.corpora.records import OnBad, Rows
from dagpack_cli.errors import DataError, Unfinished
from dagpack_cli.tokenizing.messages import Message

__all__ = [
    "UntilBad",
    "cut_off",
    "identity_of",
    "leaves_of",
    "link_parents",
    "path_to",
    "read_growing",
    "read_until_bad",
    "up_to_here",
]

_NONE, _OPEN, _DONE = 0, 1, 2


def identity_of(*parts: str | bytes) -> bytes:
    """Return 16 bytes that stand for ``parts``: equal parts, equal identity, and no two others.

    Give what tells one writing of a message from another (its id, its time, its content), so that
    two runs that happened to say the same stay two, and copies of one run are one.

    >>> identity_of("a", "b") == identity_of("ab"), len(identity_of("a"))
    (False, 16)
    """
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def link_parents(
    ids: Sequence[str], parents: Sequence[str | None], wheres: Sequence[str], *, duplicates: Literal["first", "last"]
) -> list[int]:
    """Return the index of every entry's parent, -1 for a root.

    A parent that is not there makes a root. Of entries with one id, one is the entry: the first or
    the last; the others hang nowhere and nothing hangs below them.

    Args:
        ids: of the entries, in file order.
        parents: the id of each one's parent, None for a root.
        wheres: ``file:line`` of each, for errors.
        duplicates: which of several entries with one id counts.

    Returns:
        One index an entry; -2 for an entry that does not count.

    Raises:
        DataError: entries are each other's ancestors; it names the first of the cycle in file order.
    """
    index: dict[str, int] = {}
    for number, name in enumerate(ids):
        if duplicates == "last" or name not in index:
            index[name] = number
    found = [
        -2 if index[name] != number else -1 if parent is None else index.get(parent, -1)
        for number, (name, parent) in enumerate(zip(ids, parents, strict=True))
    ]
    _refuse_cycles(found, ids, wheres)
    return found


def _refuse_cycles(parents: Sequence[int], ids: Sequence[str], wheres: Sequence[str]) -> None:
    state = bytearray(len(parents))
    for start in range(len(parents)):
        trail = []
        node = start
        while node >= 0 and state[node] == _NONE:
            state[node] = _OPEN
            trail.append(node)
            node = parents[node]
        if node >= 0 and state[node] == _OPEN:
            cycle = trail[trail.index(node) :]
            first = min(cycle)
            names = " < ".join(ids[item] for item in [*cycle, node][:6])
            raise DataError(
                wheres[first],
                f"entry {ids[first]} is its own ancestor ({names})",
                "parents lead to a root",
                hint="repair the entry's parent, or leave the file out with --on-error skip",
            )
        for item in trail:
            state[item] = _DONE


def leaves_of(parents: Sequence[int], *, among: Iterable[int] | None = None) -> list[int]:
    """Return the entries that nothing hangs below, in file order.

    >>> leaves_of([-1, 0, 0, -2])
    [1, 2]
    """
    inner = {parent for parent in parents if parent >= 0}
    wanted = range(len(parents)) if among is None else among
    return [number for number in wanted if parents[number] != -2 and number not in inner]


def path_to(parents: Sequence[int], leaf: int) -> list[int]:
    """Return the entries from the root to ``leaf``.

    >>> path_to([-1, 0, 1], 2)
    [0, 1, 2]
    """
    path = [leaf]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    path.reverse()
    return path


def read_growing(source: Source, on_bad: OnBad) -> Rows:
    """Yield the rows of a file that may still be written, as `read_source_rows` does.

    What cannot be read at the very end of a file of text that does not end with a line feed goes to
    ``on_bad`` as `Unfinished`, where there are rows before it. (Of a file that `discover` listed
    nothing of that kind is read: it ends before.)
    """
    last: DataError | None = None
    begun = False

    def hold(error: DataError) -> None:
        nonlocal last
        if last is not None:
            on_bad(last)
        last = error

    for place, row in read_source_rows(source, hold):
        if last is not None:
            error, last = last, None
            on_bad(error)
        begun = True
        yield place, row
    if last is not None:
        on_bad(_unfinished(last) if begun and _is_open(source.path) else last)


def _unfinished(error: DataError) -> Unfinished:
    if isinstance(error, Unfinished):
        return error
    return Unfinished(error.where, error.found, "the file is still being written: its last record is left out")


def _is_open(path: Path) -> bool:
    """Return whether a file is plain text without a line feed at its end."""
    with path.open("rb") as file:
        if file.read(64).removeprefix(BOM).lstrip()[:1] not in (b"{", b"/"):
            return False  # An archive, a table, or one array: those are not written line by line.
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def up_to_here(error: DataError) -> DataError:
    """Return the error of a line of a session, which says that nothing behind the line is read."""
    rest = "the session is read up to here"
    expected = f"{error.expected}; {rest}" if error.expected else rest
    return DataError(error.where, error.found, expected, hint=error.hint)


class UntilBad:
    """Rows of a file of sessions, without those whose context is not known (see `read_until_bad`).

    Attributes:
        cut: whether something that was left out stands before the row that was given last, or after
            all of them the end.
    """

    def __init__(self, source: Source, on_bad: OnBad, begins: Callable[[dict[str, Any]], bool] | None = None) -> None:
        self.cut = False
        self._source = source
        self._on_bad = on_bad
        self._begins = begins
        self._stopped = False

    def stop(self, error: DataError) -> None:
        """Tell what is wrong with the row that was given last: the session ends before it."""
        self._stopped = True
        self._on_bad(error if isinstance(error, Unfinished) else up_to_here(error))

    def __iter__(self) -> Rows:
        """Yield the rows."""
        for place, row in read_growing(self._source, self.stop):
            self.cut = self._stopped
            if self._stopped:
                if self._begins is None:
                    return
                if not self._begins(row):
                    continue
                self._stopped = False
            yield place, row
            if self._stopped and self._begins is None:
                break
        self.cut = self._stopped or self._source.unfinished > 0


def read_until_bad(
    source: Source, on_bad: OnBad, *, begins: Callable[[dict[str, Any]], bool] | None = None
) -> UntilBad:
    """Return the rows of a session's file up to the first bad one: behind it, contexts would be false.

    A last line that is still being written ends the rows too, and is `Unfinished`. A reader that
    finds more wrong with a row hands that to `UntilBad.stop`.

    Args:
        source: the file.
        on_bad: called for the bad row; the error says that the session is read up to there.
        begins: of a file of several sessions, whether a row begins one: reading goes on with it.
    """
    return UntilBad(source, on_bad, begins)


def cut_off(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages of a session whose rest is not known: its last answer may have gone on.

    Results of calls behind the answer may have come before its end.

    >>> [message.ended for message in cut_off([Message(role="assistant"), Message(role="tool")])]
    [False, True]
    """
    found = list(messages)
    last = len(found) - 1
    while last >= 0 and found[last].role == "tool":
        last -= 1
    if last >= 0 and found[last].role == "assistant":
        found[last] = replace(found[last], ended=False)
    return tuple(found)
