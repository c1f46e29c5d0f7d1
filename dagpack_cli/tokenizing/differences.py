"""Where two texts differ, without cutting in two what must stay whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["common_prefix", "difference"]

Units = Callable[[str], Sequence[tuple[int, int]]]

_STEP = 256


def difference(text: str, bare: str, units: Units, *, late: bool) -> tuple[int, int]:
    """Return the range of ``text`` that ``bare`` does not have.

    Where a repeated character leaves a choice, it begins as late as it can (calls, which stand
    behind the content) or as early (thinking, which stands before it).

    Args:
        text: the longer one.
        bare: the same without something.
        units: gives the ranges of a text that are never cut in two.
        late: which of several ranges it is.

    >>> difference("ab<t>b", "abb", lambda text: (), late=False)
    (2, 5)
    """
    inside, whole = list(units(text)), list(units(bare))
    ahead = [*inside, *whole]
    behind = [
        (len(held) - last, len(held) - first)
        for held, found in ((text, inside), (bare, whole))
        for first, last in found
    ]
    shorter = min(len(text), len(bare))
    if late:
        first = _outside(common_prefix(text, bare), ahead)
        last = _outside(min(common_suffix(text, bare), shorter - first), behind)
    else:
        last = _outside(common_suffix(text, bare), behind)
        first = _outside(min(common_prefix(text, bare), shorter - last), ahead)
    return first, len(text) - last


def common_prefix(one: str, two: str) -> int:
    """Return how many first characters are equal; slices are compared, so the cost is that of memory.

    >>> common_prefix("abc", "abd")
    2
    """
    low, high = 0, min(len(one), len(two))
    if one[:high] == two[:high]:
        return high
    while high - low > _STEP:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    while low < high and one[low] == two[low]:
        low += 1
    return low


def common_suffix(one: str, two: str) -> int:
    """Return how many last characters are equal.

    >>> common_suffix("cab", "dab")
    2
    """
    low, high = 0, min(len(one), len(two))
    while high - low > _STEP:
        middle = (low + high) // 2
        if one[len(one) - middle : len(one) - low] == two[len(two) - middle : len(two) - low]:
            low = middle
        else:
            high = middle
    while low < high and one[len(one) - 1 - low] == two[len(two) - 1 - low]:
        low += 1
    return low


def _outside(at: int, units: Sequence[tuple[int, int]]) -> int:
    """Return the last position up to ``at`` that is inside no range."""
    while any(first < at < last for first, last in units):
        at = max(first for first, last in units if first < at < last)
    return at
