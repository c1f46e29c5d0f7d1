"""Sequences of many parts are read where they lie, and only what is inside a sequence is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.sequences import Sequences

parts = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), max_size=5)


def over(corpus: list[list[list[int]]]) -> Sequences:
    """Return the sequences of parts that lie apart in memory."""
    flat = [np.array([token for sequence in part for token in sequence], dtype=np.int32) for part in corpus]
    return Sequences.over(flat, [np.array([len(sequence) for sequence in part], dtype=np.int64) for part in corpus])


@given(parts)
def test_every_part_gives_its_sequences_in_order(corpus: list[list[list[int]]]) -> None:
    """Each sequence is what was put in, whichever part lies first in memory; so are copies and blocks."""
    sequences = over(corpus)
    expected = [sequence for part in corpus for sequence in part]
    assert [tokens.tolist() for tokens in sequences] == expected
    assert sequences.num_tokens == sum(len(sequence) for sequence in expected)
    flat = [token for sequence in expected for token in sequence]
    tokens, offsets = sequences.gather()
    assert tokens.tolist() == flat
    assert offsets.tolist() == np.cumsum([0] + [len(sequence) for sequence in expected]).tolist()
    assert [token for block in sequences.blocks() for token in block.tolist()] == flat
    assert sequences.largest() == max(flat, default=-1)
    chosen = np.arange(len(expected))[::-2]
    assert [tokens.tolist() for tokens in sequences.take(chosen)] == expected[::-2]


def test_files_stay_where_they_are(tmp_path: Path) -> None:
    """Mapped files are not copied: what is read is a view that nobody can write through."""
    maps = []
    for number in range(3):
        np.arange(number, number + 5_000, dtype=np.int32).tofile(tmp_path / f"{number}.i32")
        maps.append(np.memmap(tmp_path / f"{number}.i32", dtype=np.int32, mode="r"))
    sequences = Sequences.over(maps, [np.array([2_000, 3_000])] * 3)
    for number in range(6):
        tokens = sequences[number]
        assert np.shares_memory(tokens, maps[number // 2])
        assert tokens[0] == number // 2 + 2_000 * (number % 2)
        assert not tokens.flags.writeable


@pytest.mark.parametrize("lengths", [[3], [1, 1], [2, 3]])
def test_lengths_that_do_not_fill_a_part_are_refused(lengths: list[int]) -> None:
    """Nothing beyond a part is ever read, so a length too many is an error."""
    one = np.array([1, 2, 3, 4], dtype=np.int32)
    with pytest.raises(ValueError, match="in a part of 4 int32"):
        Sequences.over([one], [np.array(lengths)])
