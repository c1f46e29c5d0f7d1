"""What every window of a build must hold, computed slowly from the examples alone.

Nothing here knows radix nodes, preorder arrays or kernels. A row is named by the tokens that lead to
it: the tree it stands in, and the targets from the tree's first token down to its own. Weights are
fractions, so sums are exact and have no order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """A token sequence, the positions that are supervised as targets, and a weight.

    Position 0 is a target only below a virtual root. An example of weight 0 supervises nothing.
    """

    tokens: Tokens
    trained: frozenset[int]
    weight: float = 1.0
    group: str | None = None


@dataclass(frozen=True)
class Policy:
    """How examples become trees of rows.

    Attributes:
        seq_len: rows of the longest path, and of a window.
        on_long: error, split, truncate or drop.
        prune: leave out rows with nothing supervised at or below them in their tree.
        virtual_root: the token before every example, None for none.
        merge: prefix, state or none.
    """

    seq_len: int
    on_long: str = "split"
    prune: bool = True
    virtual_root: int | None = None
    merge: str = "prefix"


class Row(NamedTuple):
    """A distinct pair: ``tree`` says which tree, ``path`` holds the targets from its root down to this one.

    The tree of a merged layout is the tokens up to and including its first; of an unmerged one the
    number of the occurrence.
    """

    tree: Tokens
    path: Tokens


class Piece(NamedTuple):
    """What one example has in one tree: its first token, then one target and one flag a row."""

    example: int
    tree: Tokens
    first: int
    path: Tokens
    trained: tuple[bool, ...]
    weight: Fraction

    @property
    def rows(self) -> list[Row]:
        """The rows from the root down."""
        return [Row(self.tree, self.path[:stop]) for stop in range(1, len(self.path) + 1)]


@dataclass(frozen=True)
class Total:
    """What a row stands for: pairs, summed weight, supervised pairs, and the sum of the weights' sizes."""

    count: int
    weight: Fraction
    supervised: int
    scale: Fraction

    def __add__(self, other: Total) -> Total:
        """Add two totals field by field."""
        return Total(
            self.count + other.count,
            self.weight + other.weight,
            self.supervised + other.supervised,
            self.scale + other.scale,
        )


NOTHING = Total(0, Fraction(0), 0, Fraction(0))


@dataclass(frozen=True)
class Plan:
    """Everything that packing may not change.

    Attributes:
        pieces: of the kept examples in input order, those with rows; empty under merge ``state``.
        totals: what every distinct row stands for.
        first_tokens: of every tree.
        statuses: kept, empty, single-token or dropped, one an example.
        ledger: the numbers of examples and pairs, as a manifest has them.
    """

    pieces: list[Piece]
    totals: dict[Row, Total]
    first_tokens: dict[Tokens, int]
    statuses: list[str]
    ledger: dict[str, dict[str, int]]

    @property
    def trees(self) -> list[Tokens]:
        """The trees with rows, in their order: that of the trie, or of the input."""
        return sorted({row.tree for row in self.totals})

    @property
    def supervised(self) -> int:
        """Supervised pairs in windows."""
        return sum(total.supervised for total in self.totals.values())


class TooLong(Exception):
    """``on_long`` is ``error`` and something does not fit."""


def plan(examples: Sequence[Example], policy: Policy) -> Plan:
    """Return the pieces, the rows and the ledger of one partition.

    Raises:
        TooLong: an example, or under ``state`` a path of the graph, does not fit and that is an error.
    """
    statuses = ["kept"] * len(examples)
    sequences: dict[int, tuple[Tokens, tuple[bool, ...]]] = {}
    pairs_in = pairs_dropped = 0
    for number, example in enumerate(examples):
        tokens, trained = _rooted(example, policy.virtual_root)
        pairs_in += max(len(tokens) - 1, 0) if example.tokens else 0
        if not example.tokens:
            statuses[number] = "empty"
        elif len(tokens) == 1:
            statuses[number] = "single-token"
        elif policy.merge != "state" and len(tokens) - 1 > policy.seq_len and policy.on_long == "error":
            raise TooLong
        elif policy.merge != "state" and len(tokens) - 1 > policy.seq_len and policy.on_long == "drop":
            statuses[number] = "dropped"
            pairs_dropped += len(tokens) - 1
        else:
            sequences[number] = tokens, trained
    weights = [Fraction(example.weight) for example in examples]
    if policy.merge == "state":
        whole = graph_rows(sequences, weights)
        if policy.on_long == "error" and any(len(path) - 1 > policy.seq_len for path in whole):
            raise TooLong
        cut = {path: total for path, total in whole.items() if not _is_cut_off(path, policy)}
        rows = {_in_tree(path, policy): total for path, total in cut.items()}
        kept = needed(row for row, total in rows.items() if total.supervised) if policy.prune else set(rows)
        totals = {row: total for row, total in rows.items() if row in kept}
        pieces: list[Piece] = []
        first_tokens = {row.tree: row.tree[-1] for row in totals}
        truncated = sum(total.count for path, total in whole.items() if path not in cut)
    else:
        before = list(_pieces(sequences, weights, policy))
        pieces = pruned(before) if policy.prune else before
        totals = total_rows(pieces)
        first_tokens = {piece.tree: piece.first for piece in pieces}
        truncated = sum(
            max(len(tokens) - 1 - policy.seq_len, 0) for tokens, _ in sequences.values() if policy.on_long == "truncate"
        )
    in_windows = sum(total.count for total in totals.values())
    counted = Counter(statuses)
    ledger = {
        "examples": {
            "in": len(examples),
            "kept": counted["kept"],
            "empty": counted["empty"],
            "single_token": counted["single-token"],
            "dropped": counted["dropped"],
        },
        "pairs": {
            "in": pairs_in,
            "in_windows": in_windows,
            "pruned": pairs_in - in_windows - truncated - pairs_dropped,
            "truncated": truncated,
            "dropped": pairs_dropped,
        },
    }
    return Plan(pieces, totals, first_tokens, statuses, ledger)


def _rooted(example: Example, root: int | None) -> tuple[Tokens, tuple[bool, ...]]:
    """Return the tokens with the virtual root, and which of them train as targets (the first never does)."""
    shift = 0 if root is None else 1
    tokens = example.tokens if root is None else (root, *example.tokens)
    trained = tuple(at > 0 and (at - shift) in example.trained and example.weight != 0 for at in range(len(tokens)))
    return tokens, trained


def _is_cut_off(path: Tokens, policy: Policy) -> bool:
    return policy.on_long == "truncate" and len(path) - 1 > policy.seq_len


def _in_tree(path: Tokens, policy: Policy) -> Row:
    """Return the row at the end of a whole path from the trie's root: its tree begins at the last cut above it."""
    cut = (len(path) - 2) // policy.seq_len * policy.seq_len if policy.on_long == "split" else 0
    return Row(path[: cut + 1], path[cut + 1 :])


def _pieces(
    sequences: Mapping[int, tuple[Tokens, tuple[bool, ...]]], weights: Sequence[Fraction], policy: Policy
) -> Iterator[Piece]:
    """Yield the pieces of every kept example, before anything is pruned."""
    occurrence = 0
    for number, (whole, flags) in sequences.items():
        tokens = whole[: policy.seq_len + 1] if policy.on_long == "truncate" else whole
        for start in range(0, len(tokens) - 1, policy.seq_len):
            stop = min(start + policy.seq_len + 1, len(tokens))
            tree = tokens[: start + 1] if policy.merge == "prefix" else (occurrence,)
            occurrence += 1
            yield Piece(number, tree, tokens[start], tokens[start + 1 : stop], flags[start + 1 : stop], weights[number])


def needed(trained: Iterable[Row]) -> set[Row]:
    """Return the trained rows and every row above one of them in its tree."""
    return {Row(row.tree, row.path[:stop]) for row in trained for stop in range(1, len(row.path) + 1)}


def pruned(pieces: Sequence[Piece]) -> list[Piece]:
    """Return what is left of pieces where rows with nothing supervised at or below them in their tree go."""
    rows = needed(row for piece in pieces for row, flag in zip(piece.rows, piece.trained, strict=True) if flag)
    left = []
    for piece in pieces:
        length = sum(row in rows for row in piece.rows)
        if length:
            left.append(piece._replace(path=piece.path[:length], trained=piece.trained[:length]))
    return left


def total_rows(pieces: Iterable[Piece]) -> dict[Row, Total]:
    """Return what each row of these pieces stands for: the law of a window, given its pieces."""
    totals: dict[Row, Total] = {}
    for piece in pieces:
        for row, flag in zip(piece.rows, piece.trained, strict=True):
            weight = piece.weight if flag else Fraction(0)
            totals[row] = totals.get(row, NOTHING) + Total(1, weight, int(flag), abs(weight))
    return totals


# --- merge state ------------------------------------------------------------------------------------


def graph_rows(
    sequences: Mapping[int, tuple[Tokens, tuple[bool, ...]]], weights: Sequence[Fraction]
) -> dict[Tokens, Total]:
    """Return every distinct transition, named by its path in the breadth-first tree of the graph.

    Starts come first, in ascending order; then whoever is reached earlier offers its next states,
    in ascending order; a state already reached ends a path.
    """
    transitions: dict[int, dict[int, Total]] = {}
    for number, (tokens, flags) in sequences.items():
        for at in range(1, len(tokens)):
            weight = weights[number] if flags[at] else Fraction(0)
            after = transitions.setdefault(tokens[at - 1], {})
            crossed = Total(1, weight, int(flags[at]), abs(weight))
            after[tokens[at]] = after.get(tokens[at], NOTHING) + crossed
    starts = sorted({tokens[0] for tokens, _ in sequences.values()})
    queue: deque[Tokens] = deque((start,) for start in starts)
    reached = set(starts)
    rows: dict[Tokens, Total] = {}
    while queue:
        path = queue.popleft()
        for target, total in sorted(transitions.get(path[-1], {}).items()):
            rows[*path, target] = total
            if target not in reached:
                reached.add(target)
                queue.append((*path, target))
    return rows


# --- the walk ---------------------------------------------------------------------------------------


class WalkedRow(NamedTuple):
    """One row of a window of the walk, and whether it is trained there."""

    input: int
    target: int
    depth: int
    parent: int
    fresh: bool
    row: Row


def walk(rows: Iterable[Row], first_tokens: Mapping[Tokens, int], seq_len: int) -> list[list[WalkedRow]]:
    """Return the windows of a depth-first walk: fill one, replay the path to the next row, go on."""
    children: dict[Row | None, list[Row]] = {}
    for row in rows:
        parent = Row(row.tree, row.path[:-1]) if len(row.path) > 1 else None
        children.setdefault(parent, []).append(row)
    windows: list[list[WalkedRow]] = []
    current: list[WalkedRow] = []
    places: dict[Row, int] = {}
    stack = sorted(children.get(None, []), reverse=True)
    while stack:
        row = stack.pop()
        path = [Row(row.tree, row.path[:stop]) for stop in range(1, len(row.path) + 1)]
        if len(current) == seq_len:
            windows.append(current)
            current, places = [], {}
        if not current:
            for above in path[:-1]:
                _emit(current, places, above, first_tokens, fresh=False)
        _emit(current, places, row, first_tokens, fresh=True)
        stack.extend(sorted(children.get(row, []), reverse=True))
    return [*windows, current] if current else windows


def _emit(
    window: list[WalkedRow], places: dict[Row, int], row: Row, first_tokens: Mapping[Tokens, int], *, fresh: bool
) -> None:
    depth = len(row.path) - 1
    source = row.path[-2] if depth else first_tokens[row.tree]
    parent = places[Row(row.tree, row.path[:-1])] if depth else -1
    places[row] = len(window)
    window.append(WalkedRow(source, row.path[-1], depth, parent, fresh, row))


# --- packers of whole pieces ------------------------------------------------------------------------


def next_fit(lengths: Iterable[int], seq_len: int) -> list[int]:
    """Return the window of each length: the current one if it fits, else a new one."""
    windows: list[int] = []
    number, filled = 0, 0
    for length in lengths:
        if filled + length > seq_len:
            number, filled = number + 1, 0
        filled += length
        windows.append(number)
    return windows


def best_fit_count(lengths: Iterable[int], seq_len: int) -> int:
    """Return how many windows best-fit decreasing takes; how it breaks ties does not matter."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in free if room >= length]
        room = min(fitting) if fitting else seq_len
        if fitting:
            free.remove(room)
        free.append(room - length)
    return len(free)


# --- owners and sequences ---------------------------------------------------------------------------


def owners(windows: Sequence[Mapping[Row, float]]) -> dict[Row, int]:
    """Return the window that owns each row: the first where its weight is not 0, else the first that holds it."""
    result: dict[Row, int] = {}
    for number, weights in enumerate(windows):
        for row, weight in weights.items():
            if weight != 0:
                result.setdefault(row, number)
    for number, weights in enumerate(windows):
        for row in weights:
            result.setdefault(row, number)
    return result


def ending_here(counts: Mapping[Row, int]) -> Counter[Row]:
    """Return how many sequences end at each row of a window, from the counts alone."""
    ends = Counter(dict(counts))
    for row, count in counts.items():
        if len(row.path) > 1:
            ends[Row(row.tree, row.path[:-1])] -= count
    return ends
