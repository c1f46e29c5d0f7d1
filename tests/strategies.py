"""Corpora of token examples to try: few tokens, so that prefixes are shared, and every awkward shape."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from oracle import Example, Policy, Tokens

MERGED_LAYOUTS = ("dag", "walk")
UNMERGED_LAYOUTS = ("packed", "best-fit", "padded")

DYADIC = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.5, 0.0, -1.0])
ANY_WEIGHT = DYADIC | st.floats(0.001, 1000.0) | st.floats(-1000.0, -0.001)


@st.composite
def masks(draw: st.DrawFn, length: int) -> frozenset[int]:
    """Return supervised positions: all, none, only the last, only the end, or any; position 0 means nothing."""
    kind = draw(st.sampled_from(["all", "any", "any", "tail", "last", "none"]))
    if kind == "all":
        return frozenset(range(length))
    if kind == "tail":
        return frozenset(range(draw(st.integers(0, length)), length))
    if kind == "last":
        return frozenset(range(max(length - 1, 0), length))
    if kind == "any":
        flags = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        return frozenset(at for at, flag in enumerate(flags) if flag)
    return frozenset()


def _longer(draw: st.DrawFn, tokens: Tokens, word: st.SearchStrategy[list[int]]) -> Tokens:
    return (*tokens, *draw(word))


def _shorter(draw: st.DrawFn, tokens: Tokens, _word: st.SearchStrategy[list[int]]) -> Tokens:
    return tokens[: draw(st.integers(0, len(tokens)))]


def _branch(draw: st.DrawFn, tokens: Tokens, word: st.SearchStrategy[list[int]]) -> Tokens:
    return (*_shorter(draw, tokens, word), *draw(word))


def _same(_draw: st.DrawFn, tokens: Tokens, _word: st.SearchStrategy[list[int]]) -> Tokens:
    return tokens


def _fresh(draw: st.DrawFn, _tokens: Tokens, word: st.SearchStrategy[list[int]]) -> Tokens:
    return tuple(draw(word))


_Step = Callable[[st.DrawFn, Tokens, st.SearchStrategy[list[int]]], Tokens]
_STEPS: list[_Step] = [_branch, _branch, _longer, _shorter, _same, _fresh]


@st.composite
def sequences(draw: st.DrawFn, *, max_examples: int = 9, alphabet: int = 3) -> list[Tokens]:
    """Return token sequences that mostly continue, cut or repeat one another; or a chain, or a star."""
    shape = draw(st.sampled_from(["mixed", "mixed", "mixed", "mixed", "chain", "star", "trunk"]))
    if shape == "chain":
        longest = draw(st.integers(1, 30))
        return [(1,) * draw(st.integers(0, longest)) for _ in range(draw(st.integers(0, 3)))] + [(1,) * longest]
    if shape in ("star", "trunk"):
        trunk = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=1 if shape == "star" else 6)))
        tails = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=10))
        return [trunk + tuple(tail) for tail in tails]
    word = st.lists(st.integers(0, alphabet - 1), max_size=7)
    found: list[Tokens] = [tuple(draw(word))]
    for _ in range(draw(st.integers(0, max_examples - 1))):
        step = draw(st.sampled_from(_STEPS))
        found.append(step(draw, draw(st.sampled_from(found)), word))
    return found


@st.composite
def corpora(
    draw: st.DrawFn, *, weights: st.SearchStrategy[float] = DYADIC, max_examples: int = 9, alphabet: int = 3
) -> list[Example]:
    """Return examples with shared prefixes, masks and weights."""
    return [
        Example(tokens, draw(masks(len(tokens))), draw(weights))
        for tokens in draw(sequences(max_examples=max_examples, alphabet=alphabet))
    ]


@st.composite
def graphs(draw: st.DrawFn) -> list[Example]:
    """Return examples that walk about a small graph: cycles, self loops, several starts, ties at equal depth."""
    if draw(st.booleans()):
        return draw(corpora(max_examples=8, alphabet=5))
    walks = st.lists(st.integers(0, 6), min_size=1, max_size=5).map(tuple)
    return [
        Example(walk, draw(masks(len(walk))), draw(DYADIC)) for walk in draw(st.lists(walks, min_size=3, max_size=9))
    ]


@st.composite
def policies(
    draw: st.DrawFn,
    *,
    merge: str = "prefix",
    on_long: tuple[str, ...] = ("split", "split", "truncate", "drop", "error"),
    prune: bool | None = None,
) -> Policy:
    """Return lengths and policies; short windows more often than not, so that something is cut."""
    return Policy(
        seq_len=draw(st.integers(1, 8) | st.sampled_from([12, 40])),
        on_long=draw(st.sampled_from(on_long)),
        prune=draw(st.booleans()) if prune is None else prune,
        virtual_root=draw(st.sampled_from([None, None, 0, 11])),
        merge=merge,
    )
