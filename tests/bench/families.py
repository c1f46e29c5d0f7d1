"""Generated corpora: the same numbers on every machine, token ids drawn as 1/rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["STRUCTURE", "Corpus", "map_corpus"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_VOCABULARY = 50_000
_PROMPT, _TRUNK, _TURN = 8_000, 2_000, 100  # tokens of the agents' system prompts, explorations and turns
_SYSTEM = 500  # tokens of the chats' one system prompt


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sequences end to end, and what of them trains.

    Attributes:
        tokens: shape (num_tokens,), int32.
        offsets: shape (num_sequences + 1,), int64.
        runs: shape (num_runs, 2), int32; supervised ranges of a sequence's own tokens.
        run_offsets: shape (num_sequences + 1,), int64.
        seq_len: a window that holds the longest sequence, as users would choose it.
    """

    tokens: Int32Array
    offsets: Int64Array
    runs: Int32Array
    run_offsets: Int64Array
    seq_len: int

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1


def map_corpus(corpus: Corpus, directory: Path) -> Corpus:
    """Return the corpus with its tokens and offsets memory-mapped from files, as both sides read them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokens", "offsets"):
        np.save(directory / f"{name}.npy", getattr(corpus, name))
    tokens, offsets = (np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("tokens", "offsets"))
    return Corpus(tokens, offsets, corpus.runs, corpus.run_offsets, corpus.seq_len)


def _draw(rng: np.random.Generator, num: int, vocabulary: int = _VOCABULARY) -> Int32Array:
    """Return token ids whose frequency falls as 1/rank."""
    ids: Int32Array = np.exp(rng.random(num, dtype=np.float32) * np.float32(np.log(vocabulary))).astype(np.int32)
    return ids


def _lengths(rng: np.random.Generator, num: int, mean: float, longest: int) -> Int64Array:
    """Return log-normal lengths, sigma 1, from 2 up to ``longest``."""
    drawn = rng.lognormal(np.log(mean) - 0.5, 1.0, num)
    return np.clip(drawn, 2, longest).astype(np.int64)


def _ranges(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    shifts = starts - (np.cumsum(lengths) - lengths)
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(shifts, lengths))


def _offsets(lengths: npt.NDArray[Any]) -> Int64Array:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _corpus(tokens: Int32Array, lengths: Int64Array, first_supervised: Int64Array, seq_len: int) -> Corpus:
    """Return sequences of which everything from a token on trains."""
    runs = np.stack((first_supervised, lengths), axis=1).astype(np.int32)
    return Corpus(tokens, _offsets(lengths), runs, np.arange(len(lengths) + 1), seq_len)


def agent(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return sessions of a few agents: a long system prompt, an exploration left somewhere, an own rest."""
    num = max(2, num_tokens // (_PROMPT + _TRUNK // 2 + 500))
    num_tasks = max(1, num // 5)
    prompts, trunks = _draw(rng, 5 * _PROMPT), _draw(rng, num_tasks * _TRUNK)
    tails = np.minimum(_lengths(rng, num, 500, 4_000), 4_000)
    own = _draw(rng, int(tails.sum()))
    tasks = rng.integers(0, num_tasks, num)
    forks = rng.integers(0, _TRUNK + 1, num)
    prompt_starts = rng.integers(0, 5, num_tasks)[tasks] * _PROMPT
    starts = np.stack(
        (prompt_starts, len(prompts) + tasks * _TRUNK, len(prompts) + len(trunks) + np.cumsum(tails) - tails), axis=1
    )
    parts = np.stack((np.full(num, _PROMPT), forks, tails), axis=1)
    tokens = np.concatenate((prompts, trunks, own))[_ranges(starts.ravel(), parts.ravel())]
    lengths = parts.sum(axis=1)
    turns = -(-(lengths - _PROMPT) // (2 * _TURN))
    firsts = _PROMPT + 2 * _TURN * _ranges(np.zeros(num, dtype=np.int64), turns)
    runs = np.stack((firsts, np.minimum(firsts + _TURN, np.repeat(lengths, turns))), axis=1).astype(np.int32)
    return Corpus(tokens, _offsets(lengths), runs, _offsets(turns), 16_384)


def web(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return documents that share nothing but chance: log-normal, 300 tokens on average."""
    lengths = _lengths(rng, max(2, num_tokens // 300), 300, 4_097)
    return _corpus(_draw(rng, int(lengths.sum())), lengths, np.zeros_like(lengths), 4_096)


def chat(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return short samples below one system prompt; the second half of each trains."""
    own = _lengths(rng, max(2, num_tokens // (_SYSTEM + 157)), 157, 3_000)
    pool = np.concatenate((_draw(rng, _SYSTEM), _draw(rng, int(own.sum()))))
    starts = np.stack((np.zeros_like(own), _SYSTEM + np.cumsum(own) - own), axis=1)
    parts = np.stack((np.full_like(own, _SYSTEM), own), axis=1)
    return _corpus(pool[_ranges(starts.ravel(), parts.ravel())], own + _SYSTEM, _SYSTEM + own // 2, 4_096)


def chain(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return sequences each of which is the one before it and one token more."""
    num = max(2, int((2 * num_tokens) ** 0.5))
    lengths = np.arange(2, num + 2)
    longest = _draw(rng, num + 1)
    tokens = longest[_ranges(np.zeros_like(lengths), lengths)]
    return _corpus(tokens, lengths, np.zeros_like(lengths), 1 << num.bit_length())


def fan_out(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return sequences of 30 tokens that share the first and differ in the second."""
    num = max(2, num_tokens // 30)
    tokens = _draw(rng, 30 * num).reshape(num, 30)
    tokens[:, 0] = 1
    tokens[:, 1] = rng.permutation(num) + 2
    lengths = np.full(num, 30)
    return _corpus(tokens.ravel(), lengths, np.zeros_like(lengths), 4_096)


def identical(rng: np.random.Generator, num_tokens: int) -> Corpus:
    """Return one sequence of 400 tokens again and again."""
    num = max(2, num_tokens // 400)
    lengths = np.full(num, 400)
    return _corpus(np.tile(_draw(rng, 400), num), lengths, np.zeros_like(lengths), 4_096)


STRUCTURE: dict[str, Callable[[np.random.Generator, int], Corpus]] = {
    "agent": agent,
    "web": web,
    "chat": chat,
    "chain": chain,
    "fan-out": fan_out,
    "identical": identical,
}
