"""What is sorted in chunks, gathered in blocks and swept in blocks is what is done at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.arrays import save_array, save_blocks
from dagpack_cli.sequences import Sequences
from dagpack_cli.trie import (
    build_nodes,
    build_trie,
    nodes,
    open_trie,
    save_nodes,
    save_trie,
    sweep_blocks,
    sweep_weights,
)
from dagpack_cli.trie.order import sort_sequences

Corpus = list[list[int]]
corpora = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=14)


def apart(corpus: Corpus, num_parts: int) -> Sequences:
    """Return sequences that lie in several arrays."""
    parts = [
        corpus[len(corpus) * part // num_parts : len(corpus) * (part + 1) // num_parts] for part in range(num_parts)
    ]
    flat = [np.array([token for sequence in part for token in sequence], dtype=np.int32) for part in parts]
    return Sequences.over(flat, [np.array([len(sequence) for sequence in part], dtype=np.int64) for part in parts])


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@given(corpus=corpora, chunk=st.integers(1, 6), workers=st.integers(1, 3), num_parts=st.integers(1, 3))
def test_chunks_give_the_order_and_lcp_of_sorted_lists(
    engine: Any, corpus: Corpus, chunk: int, workers: int, num_parts: int
) -> None:
    """Whatever the chunks, threads and parts: Python's own stable order, and prefixes counted token by token."""
    order, lcp = sort_sequences(apart(corpus, num_parts), engine=engine, chunk=chunk, workers=workers)
    expected = sorted(range(len(corpus)), key=lambda number: corpus[number])
    assert order.tolist() == expected
    for position, number in enumerate(expected):
        before = corpus[expected[position - 1]] if position else []
        differs = [left != right for left, right in zip(before, corpus[number], strict=False)]
        assert lcp[position] == (differs.index(True) if True in differs else len(differs))


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@pytest.mark.parametrize(
    "corpus",
    [
        [[7] * length for length in range(1, 120)],
        [[7] * length for length in range(120, 0, -1)],
        [[7, number] for number in range(500)],
        [[1, 2, 3]] * 300,
        [[number % 2] * 3 + [number % 5] for number in range(400)],
    ],
    ids=["ascending", "descending", "fan-out", "equal", "binary then five"],
)
def test_more_runs_than_are_merged_at_a_time(engine: Any, corpus: Corpus) -> None:
    """Hundreds of runs are merged in rounds, with the result of one sort."""
    sequences = apart(corpus, 1)
    whole = sort_sequences(sequences, engine="numpy")
    for chunk in (1, 3):
        chunked = sort_sequences(sequences, engine=engine, chunk=chunk)
        assert [values.tolist() for values in chunked] == [values.tolist() for values in whole]


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@given(corpus=corpora, root=st.sampled_from([None, 0, 5]), block=st.integers(1, 7), data=st.data())
def test_a_trie_written_in_blocks_is_the_one_in_memory(
    engine: Any, corpus: Corpus, root: int | None, block: int, data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Tokens gathered and weights swept a few at a time are those of all at once, a virtual root's too."""
    folder = tmp_path_factory.mktemp("trie")
    whole = [[root, *sequence] if root is not None else sequence for sequence in corpus]
    flat = np.array([token for sequence in whole for token in sequence], dtype=np.int32)
    offsets = np.cumsum([0] + [len(sequence) for sequence in whole]).astype(np.int64)
    trie, expected_ends = build_trie(flat, offsets, engine="numpy")
    order = np.argsort(expected_ends, kind="stable")
    runs = [sorted(data.draw(st.tuples(*[st.integers(0, len(whole[number]))] * 2))) for number in order.tolist()]
    arguments = (
        trie.depths.astype(np.int64),
        (trie.depths + np.diff(trie.offsets)).astype(np.int64),
        expected_ends[order],
        np.array(runs, dtype=np.int64).reshape(-1, 2),
        np.arange(len(runs) + 1, dtype=np.int64),
        np.array([0.1 * (1 + number % 3) for number in range(len(runs))]),
    )
    trie.weights[:] = sweep_weights(*arguments, engine="numpy")
    save_trie(trie, folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "_BLOCK", block)
        built, ends = build_nodes(apart(corpus, 2), root=root, engine=engine, chunk=3)
        save_nodes(built, sweep_blocks(*arguments, engine=engine, block=block), folder / "blocks")
    assert ends.tolist() == expected_ends.tolist()
    for path in sorted((folder / "whole").iterdir()):
        assert path.read_bytes() == (folder / "blocks" / path.name).read_bytes(), path.name
    open_trie(folder / "blocks")


def test_blocks_in_any_order_are_the_array(tmp_path: Path) -> None:
    """A file written backwards has the bytes of one written at once, header included."""
    for dtype in (np.int32, np.float32, np.int64):
        array = np.arange(10, dtype=dtype)
        save_array(tmp_path / "whole.npy", array)
        save_blocks(tmp_path / "blocks.npy", 10, dtype, [(6, array[6:]), (0, array[:4]), (4, array[4:6])])
        assert (tmp_path / "whole.npy").read_bytes() == (tmp_path / "blocks.npy").read_bytes()
    save_array(tmp_path / "whole.npy", np.zeros(0, dtype=np.int32))
    save_blocks(tmp_path / "blocks.npy", 0, np.int32, [])
    assert (tmp_path / "whole.npy").read_bytes() == (tmp_path / "blocks.npy").read_bytes()
