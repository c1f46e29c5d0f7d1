"""Sessions are trees: entries that name their parent, the paths to the leaves, and who a message is.

A message that many leaves or fork files carry has one *identity*; the first example in canonical
order that carries it trains it. Everything here is iterative: a chain may be as long as a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from dagpack_cli.errors import DataError

__all__ = ["identity_of", "leaves_of", "link_parents", "path_to"]

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
