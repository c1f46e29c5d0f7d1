"""Where a game is not Markov: one state and action, and several next states.

A symbol is the JSON of a state with the action that led to it. Of every symbol only two numbers are held, of its
state and of its action; the texts are read once to find them, and again where there is something to tell.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.tokenizing.repeats import Keys, as_keys, digest, first_equals
from dagpack_cli.trie import Transitions

__all__ = ["SymbolParts", "markov_conflicts", "symbol_parts"]

Int32Array = npt.NDArray[np.int32]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: odd, so that products modulo 2^64 differ


@dataclass(frozen=True, slots=True)
class SymbolParts:
    """Which symbols have the same state, and which the same action.

    Attributes:
        symbols: canonical JSON of ``{"action": ..., "state": ...}`` for every id; may stay in a file.
        states: shape (num_symbols,), int32; the first symbol with the same state.
        actions: shape (num_symbols,), int32; the first symbol with the same action, -1 for none.
    """

    symbols: Sequence[bytes]
    states: Int32Array
    actions: Int32Array


def symbol_parts(symbols: Sequence[bytes], zeros: Zeros) -> SymbolParts:
    """Return the parts of symbols, whose texts are looked at once, in order.

    Args:
        symbols: canonical JSON; what is no object is a state.
        zeros: makes the arrays with an entry a symbol: 8 bytes each that stay, some 70 on the way.
    """
    num = len(symbols)
    states, actions = zeros((num, 2), np.uint64), zeros((num, 2), np.uint64)
    have_action = zeros(num, np.bool_)
    left = iter(symbols)
    for span in spans(num):
        found = [_digests(symbol) for symbol in itertools.islice(left, span.stop - span.start)]
        states[span] = as_keys([state for state, _ in found])
        actions[span] = as_keys([action or bytes(len(state)) for state, action in found])
        have_action[span] = [action is not None for _, action in found]
    return SymbolParts(symbols, _numbers(states, zeros), _numbers(actions, zeros, have_action))


def markov_conflicts(
    transitions: Transitions, parts: SymbolParts, zeros: Zeros = np.zeros
) -> list[tuple[str, str, list[str]]]:
    """Return every (state, action) that leads to more than one next state, as JSON texts.

    Args:
        transitions: over symbol ids; ids without a symbol (a virtual root) are passed over.
        parts: of the symbols.
        zeros: makes the arrays with an entry a transition: some 60 bytes each.

    Transitions without an action are a choice, not a conflict. Sorted; time O(transitions log transitions),
    memory: the texts of the conflicts.
    """
    found: dict[tuple[int, int], set[int]] = {}
    for state, action, outcome in _outcomes(transitions, parts, zeros):
        found.setdefault((state, action), set()).add(outcome)
    wanted = {number for (state, _), outcomes in found.items() for number in (state, *outcomes)}
    states = {number: _texts(parts.symbols[number])[0] for number in sorted(wanted)}
    actions = {number: _texts(parts.symbols[number])[1] or "" for number in sorted({action for _, action in found})}
    return sorted(
        (states[state], actions[action], sorted(states[number] for number in outcomes))
        for (state, action), outcomes in found.items()
    )


def _texts(symbol: bytes) -> tuple[str, str | None]:
    """Return the JSON of a symbol's state, and of its action if it has one; its own where it has no state."""
    value = json.loads(symbol)
    record = value if isinstance(value, dict) else {"state": value}
    state, action = (json.dumps(record[key], sort_keys=True) if key in record else None for key in ("state", "action"))
    return symbol.decode() if state is None else state, action


def _digests(symbol: bytes) -> tuple[bytes, bytes | None]:
    state, action = _texts(symbol)
    return digest(state.encode()), None if action is None else digest(action.encode())


def _numbers(keys: Keys, zeros: Zeros, have: npt.NDArray[np.bool_] | None = None) -> Int32Array:
    """Return for every symbol the first one with an equal key, -1 for those that have none."""
    firsts, numbers = first_equals(keys, zeros), zeros(len(keys), np.int32)
    for span in spans(len(keys)):
        numbers[span] = firsts[span] if have is None else np.where(have[span], firsts[span], -1)
    return numbers


def _outcomes(transitions: Transitions, parts: SymbolParts, zeros: Zeros) -> Iterator[tuple[int, int, int]]:
    """Yield state, action and next state of every transition whose state and action lead elsewhere too."""
    kept = select(len(transitions.sources), lambda span: _have_action(transitions, parts, span), zeros)
    keys, outcomes = zeros((len(kept), 2), np.uint64), zeros(len(kept), np.int32)
    for span in spans(len(kept)):
        targets = transitions.targets[kept[span]]
        pairs = parts.states[transitions.sources[kept[span]]].astype(np.int64) << 32 | parts.actions[targets]
        keys[span, 0] = pairs.astype(np.uint64) * _SPREAD
        outcomes[span] = parts.states[targets]
    firsts, differ = first_equals(keys, zeros), zeros(len(kept), np.bool_)
    for span in spans(len(kept)):
        differ[firsts[span][outcomes[span] != outcomes[firsts[span]]]] = True
    members = select(len(kept), lambda span: differ[firsts[span]], zeros)
    for span in spans(len(members)):
        rows = kept[members[span]]
        states, actions = parts.states[transitions.sources[rows]], parts.actions[transitions.targets[rows]]
        yield from zip(states.tolist(), actions.tolist(), outcomes[members[span]].tolist(), strict=True)


def _have_action(transitions: Transitions, parts: SymbolParts, span: slice) -> npt.NDArray[np.bool_]:
    sources, targets = transitions.sources[span], transitions.targets[span]
    inside = (sources < len(parts.states)) & (targets < len(parts.states))
    have: npt.NDArray[np.bool_] = inside.copy()
    have[inside] = parts.actions[targets[inside]] >= 0
    return have
