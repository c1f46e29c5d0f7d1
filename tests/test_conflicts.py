"""Where games are not Markov, against the plain search through all texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli import memory
from dagpack_cli.memory import Scratch
from dagpack_cli.stages.conflicts import markov_conflicts, symbol_parts
from dagpack_cli.trie import Transitions, count_transitions

Conflicts = list[tuple[str, str, list[str]]]


def counted(sequences: Sequence[Sequence[int]]) -> Transitions:
    """Return the transitions of sequences, all supervised."""
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    offsets = np.cumsum([0] + [len(sequence) for sequence in sequences])
    return count_transitions(tokens, offsets, np.ones(len(tokens)), np.ones(len(tokens), dtype=bool))


def plain_conflicts(sequences: Sequence[Sequence[int]], symbols: Sequence[bytes]) -> Conflicts:
    """Return the conflicts from the texts of all states and actions."""
    parts = []
    for symbol in symbols:
        value = json.loads(symbol)
        record = value if isinstance(value, dict) else {"state": value}
        texts = [json.dumps(record[key], sort_keys=True) if key in record else None for key in ("state", "action")]
        parts.append((texts[0] if texts[0] is not None else symbol.decode(), texts[1]))
    outcomes: dict[tuple[str, str], set[str]] = {}
    for sequence in sequences:
        for source, target in pairwise(sequence):
            if source < len(parts) and target < len(parts) and (action := parts[target][1]) is not None:
                outcomes.setdefault((parts[source][0], action), set()).add(parts[target][0])
    return sorted((state, action, sorted(after)) for (state, action), after in outcomes.items() if len(after) > 1)


def test_conflicts_are_found_and_choices_are_not() -> None:
    """One (state, action) with two next states is a conflict; two actions, or none, are not."""
    symbols = [
        b'{"state":"a"}',
        b'{"action":"go","state":"b"}',
        b'{"action":"go","state":"c"}',
        b'{"action":"stay","state":"a"}',
        b'{"state":"d"}',
    ]
    transitions = counted([[0, 1], [0, 2], [0, 3, 1], [0, 4], [1, 3]])
    assert markov_conflicts(transitions, symbol_parts(symbols, np.zeros)) == [('"a"', '"go"', ['"b"', '"c"'])]


# The same state in several orders of its keys and with several numbers, and what is no object or has no state.
STATES = [
    b'{"a":1,"b":2}',
    b'{"b":2,"a":1}',
    b'{"b": 2.0, "a": 1}',
    b'"x"',
    b"[1,2]",
    b"null",
    b'"\\u00e9"',
    '"é"'.encode(),
]
ACTIONS = [b'"up"', b'{"x":1,"y":2}', b'{"y":2,"x":1}', b"null", None]


@st.composite
def games(draw: st.DrawFn) -> tuple[list[bytes], list[list[int]]]:
    """Return the texts of some symbols, and sequences of them and of one id beyond them."""
    texts = st.one_of(
        st.builds(
            lambda state, action: (
                b'{"state":%s}' % state if action is None else b'{"action":%s,"state":%s}' % (action, state)
            ),
            st.sampled_from(STATES),
            st.sampled_from(ACTIONS),
        ),
        st.sampled_from([b"7", b"[1,2]", b'"x"', b"null", b'{"action":"up"}', b"{}", b'{"action": "up"}']),
    )
    symbols = draw(st.lists(texts, min_size=1, max_size=14, unique=True))
    tokens = st.integers(0, len(symbols))
    return symbols, draw(st.lists(st.lists(tokens, min_size=1, max_size=8), max_size=9))


@given(games(), st.integers(1, 5))
def test_conflicts_are_those_of_the_texts(game: tuple[list[bytes], list[list[int]]], span: int) -> None:
    """Whatever states and actions are, and however little is looked at at a time: the same list, in the same order."""
    symbols, sequences = game
    with TemporaryDirectory() as folder, mock.patch.object(memory, "SPAN", span):
        zeros = Scratch(Path(folder), 0).zeros
        parts = symbol_parts(symbols, zeros)
        assert markov_conflicts(counted(sequences), parts, zeros) == plain_conflicts(sequences, symbols)
