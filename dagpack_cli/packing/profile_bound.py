"""The profile bound: at every node, how many windows there are and how full they must be. Pure.

Take a packing of whole root paths. A window that holds a leaf below v holds the path down to v and
has C(v) = seq_len - depth - length rows for what is below v; how many of them it uses is its usage
at v. Below v it consists of *parts*, at most one of each child: a child's part is what the window
holds of the child's subtree, the child's run included. Bottom up we keep four claims about v, in any
packing (n is the number of windows that hold a leaf below v, their usages here with v's own run):

    windows  w <= n
    rows     P <= the sum of the usages
    least    m <= every usage
    sizes    u_1 >= ... >= u_w: the k-th largest usage is at least u_k

A leaf has w = 1 and P = m = u_1 = length. The claims about the children of v give those about v: for
a size t count the windows that hold a part of at least t, N(t). Each of them uses t or more.

* t > C/2: parts of at least t are in different windows, so N(t) >= the number of entries >= t.
* t <= C/2: let A be the windows with a part above C - t. Such a window has less than t rows left,
  so no second part of at least t: all parts of at least t outside A are in other windows. If a(c) of
  child c's parts are in A, the rest have at least R(c) rows: the sum of c's entries from t on, the
  first a(c) left out (leaving out a(c) parts moves the k-th largest to the (k + a(c))-th at worst);
  and, if m(c) >= t, also P(c) - a(c) * C, for then every part of c counts and none exceeds C. Hence
  N(t) >= sum a(c) + ceil(sum R(c) / C). One more in a(c) lowers R(c) by at most C, and a(c) is at
  least b(c), c's entries above C - t: the sum is least at a = b.
  By count instead of rows: a window takes floor(C / t) parts of at least t, so ceil(sum R(c) / C)
  may be replaced by the entries from t on that are not in A, divided by it and rounded up.
* Parts of one child are in different windows: N(t) is at least the number of its entries from t on,
  all w(c) of them where m(c) >= t.

Then w(v) = N(min m(c)), u_k(v) = length + the largest t with N(t) >= k, m(v) = length + min m(c),
and P(v) = max(length * w(v) + sum P(c), sum of the u_k(v)).

Where sum P(c) <= C all of this is 1: none of the terms above exceeds the volume, rounded up.

That is the volume bound (at t = min m(c), b = 0), the bound of Martello and Toth (1990) on the
children as items, and more: it knows of windows that nothing else fits into. Slack = seq_len - depth
- usage does not change going up, so entries are kept as slacks, and a chain of nodes costs O(1) each.
Equal entries are kept once, with their number; where more than `MOST_SIZES` differ, slacks are rounded up
to multiples of the least power of two that leaves as many or fewer, which only weakens the claim.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["MOST_SIZES", "PROFILE_THRESHOLD", "profile_sweep", "profile_totals"]

MOST_SIZES = 128
"""Different entries kept a node: a spine of n leaves costs n times as many steps."""

PROFILE_THRESHOLD = 5_000
"""Nodes from which ``auto`` compiles: the plain way takes about 50 microseconds a node with two children."""

Int64s = npt.NDArray[np.int64]


class _Claims(NamedTuple):
    """What holds of a node in any packing; usages below it are with its own run."""

    windows: int
    rows: int
    least: int
    slacks: Int64s  # of the entries, ascending, each once
    counts: Int64s  # how many windows each stands for; together ``windows``


def profile_sweep(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> tuple[Int64s, int]:
    """Return the windows that every node needs, and the rows that all windows need together.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows, which the caller has checked.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 5,000 nodes.

    Returns:
        windows: shape (n + 1,), int64, >= 1; the last entry is the forest's own, 0 if it is empty.
        rows: over all windows, repeated ones included.

    Time O(n log n + 128 n) at worst, where every node of a spine has a leaf and hundreds of windows
    below it; O(n log n) where most subtrees need few. Memory O(n).
    """
    if forest.num_nodes == 0:
        return np.zeros(1, dtype=np.int64), 0
    if uses_kernel(engine, forest.num_nodes, PROFILE_THRESHOLD):
        windows = np.zeros(forest.num_nodes + 1, dtype=np.int64)
        windows[-1], rows, _ = _compiled_sweep(forest, seq_len, windows[:-1])
        return windows, rows
    return _plain_sweep(forest, seq_len)


def profile_totals(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> tuple[int, int, int]:
    """Return windows, rows and attention edges that all windows need together.

    Arguments and cost as `profile_sweep`. What the compiled way holds does not grow with the nodes: it is what is
    claimed of the siblings of a path's nodes, hence O(seq_len + windows). The columns may lie in files.
    """
    if forest.num_nodes == 0:
        return 0, 0, 0
    if uses_kernel(engine, forest.num_nodes, PROFILE_THRESHOLD):
        return _compiled_sweep(forest, seq_len, np.zeros(0, dtype=np.int64))
    windows, rows = profile_sweep(forest, seq_len, engine=engine)
    edges = forest.lengths * forest.depths + forest.lengths * (forest.lengths + 1) // 2
    return int(windows[-1]), rows, int((windows[:-1] * edges).sum())


def _compiled_sweep(forest: Forest, seq_len: int, windows: Int64s) -> tuple[int, int, int]:
    """Return windows, rows and attention edges, and fill in the windows of every node where there is room for them."""
    from dagpack_cli.packing import kernels_bound

    found = kernels_bound.profile_sweep(
        forest.parents, forest.lengths, forest.depths, seq_len, MOST_SIZES, windows, kernels_bound.MOST_CLAIMS
    )
    return int(found[0]), int(found[1]), int(found[2])


def _plain_sweep(forest: Forest, seq_len: int) -> tuple[Int64s, int]:
    """Return the claims' windows of all nodes and the forest's rows, children before parents."""
    num = forest.num_nodes
    ends = forest.ends.tolist()
    lengths = [*forest.lengths.tolist(), 0]
    rooms = [*(seq_len - forest.depths - forest.lengths).tolist(), seq_len]
    claims: dict[int, _Claims] = {}
    windows = np.zeros(num + 1, dtype=np.int64)
    for node in range(num, -1, -1):
        # Entry `num` is the super-root's: visited last, its children are the roots.
        at = node - 1 if node else num
        child, stop = (0, num) if at == num else (at + 1, ends[at])
        if child == stop:
            claims[at] = _Claims(1, lengths[at], lengths[at], np.array([rooms[at]]), np.ones(1, dtype=np.int64))
        else:
            children = []
            while child < stop:
                children.append(claims.pop(child))
                child = ends[child]
            claims[at] = _combine(children, lengths[at], rooms[at])
        windows[at] = claims[at].windows
    return windows, claims[num].rows


def _combine(children: list[_Claims], length: int, room: int) -> _Claims:
    """Return the claims of a node with a run of ``length`` and ``room`` rows below it."""
    if len(children) == 1:
        (only,) = children
        return only._replace(rows=only.rows + length * only.windows, least=only.least + length)
    volume = sum(child.rows for child in children)
    least = min(child.least for child in children)
    if volume <= room:  # one window for all is not ruled out, and it is as full as the fullest part
        fullest = min(int(child.slacks[0]) for child in children)
        return _Claims(1, volume + length, least + length, np.array([fullest]), np.ones(1, dtype=np.int64))
    sizes, needed = _windows_by_size(children, room)
    num = int(needed[-1])
    more = np.diff(needed, prepend=0)
    slacks, counts = _merge_equal(room - sizes[more > 0], more[more > 0])
    listed = int(((room - slacks + length) * counts).sum())
    power = 0
    while len(slacks) > MOST_SIZES:
        power += 1
        slacks, counts = _merge_equal(np.minimum(-(-slacks >> power) << power, room - least), counts)
    return _Claims(num, max(volume + length * num, listed), least + length, slacks, counts)


def _merge_equal(slacks: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Return ascending slacks without repetitions, with the sums of their counts."""
    first = np.flatnonzero(np.diff(slacks, prepend=-1))
    return slacks[first], np.add.reduceat(counts, first)


def _windows_by_size(children: list[_Claims], room: int) -> tuple[Int64s, Int64s]:
    """Return the sizes to look at, descending, and N of each, or less where an equal one follows."""
    # Every child's entries, and behind them its least usage, from where on all of its parts count.
    sizes = np.concatenate([room - child.slacks for child in children] + [[child.least for child in children]])
    counts = np.concatenate([child.counts for child in children] + [np.zeros(len(children), dtype=np.int64)])
    # How many windows of its own child an entry proves with those before it.
    ranks = np.concatenate([*(np.cumsum(child.counts) for child in children), [child.windows for child in children]])
    order = np.argsort(-sizes, kind="stable")
    sizes, counts, ranks = sizes[order], counts[order], ranks[order]
    seen, sums = np.append(0, np.cumsum(counts)), np.append(0, np.cumsum(counts * sizes))
    reached = np.arange(1, len(sizes) + 1)
    inside = np.minimum(np.searchsorted(-sizes, sizes - room), reached)  # entries above room - t: those in A
    rows = sums[1:] - sums[inside] + _unlisted_rows(children, sizes, room)
    outside = np.maximum(-(-rows // room), -(-(seen[1:] - seen[inside]) // (room // sizes)))
    return sizes, np.maximum.accumulate(np.maximum(seen[inside] + outside, ranks))


def _unlisted_rows(children: list[_Claims], sizes: Int64s, room: int) -> Int64s:
    """Return, for every size t, the sum of R(c) less the sum of entries: what P knows beyond the lists."""
    total = np.zeros(len(sizes), dtype=np.int64)
    for child in children:
        own = room - child.slacks
        sums = np.append(0, np.cumsum(own * child.counts))
        if child.rows <= sums[-1]:
            continue  # nor is it more once entries are left out: each takes away at most the room
        inside = np.searchsorted(-own, sizes - room)
        alone, left = np.append(0, np.cumsum(child.counts))[inside], sums[-1] - sums[inside]
        total += np.where(sizes <= child.least, np.maximum(child.rows - alone * room - left, 0), 0)
    return total
