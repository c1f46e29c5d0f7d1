"""Masks in every form against the definition, and against FlexAttention's own builder."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dagpack_cli.errors import TreeError
from dagpack_cli.training import (
    allowed,
    collate,
    subtree_ends,
    tree_additive_mask,
    tree_block_mask,
    tree_bool_mask,
    tree_mask_mod,
)
from dagpack_cli.training import masks as masks_module
from dagpack_cli.training.masks import least_depths


def random_parents(generator: np.random.Generator, length: int, padding: int) -> list[int]:
    """Return a preorder forest of rows: long stretches, branches near the leaf and far up, roots; then padding."""
    parents: list[int] = []
    path: list[int] = []
    while len(parents) < length - padding:
        if not path or generator.random() < 0.02:
            path = []
        elif generator.random() < 0.15:
            del path[int(generator.integers(0, len(path))) + 1 :]
        parents.append(path[-1] if path else -1)
        path.append(len(parents) - 1)
    return parents + [-1] * padding


def random_ends(seed: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the parents and ends of a batch of random windows."""
    generator = np.random.default_rng(seed)
    padding = [int(generator.integers(0, length // 2)) if generator.random() < 0.7 else 0 for _ in range(batch)]
    parents = torch.tensor([random_parents(generator, length, rows) for rows in padding], dtype=torch.int32)
    return parents, subtree_ends(parents)


def depths_of(parents: Tensor) -> Tensor:
    """Return the depths of a batch of windows, by walking down from parents; 0 in padding."""
    depths = torch.zeros(parents.shape, dtype=torch.int64)
    for window, row in np.ndindex(*parents.shape):
        above = int(parents[window, row])
        depths[window, row] = depths[window, above] + 1 if above >= 0 else 0
    return depths


def near_relation(parents: list[int], window: int | None, chunk: int | None) -> Tensor:
    """Return who sees whom in one window, by walking up: all ancestors, or while they are near enough."""
    paths: list[list[int]] = []
    for row, above in enumerate(parents):
        paths.append([*(paths[above] if above >= 0 else []), row])
    sees = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for row, path in enumerate(paths):
        if window is not None:
            path = path[-window:]
        elif chunk is not None:
            path = path[(len(path) - 1) // chunk * chunk :]
        sees[row, path] = True
    return sees


@given(seed=st.integers(0, 10_000), length=st.integers(2, 40), size=st.integers(1, 12), chunked=st.booleans())
def test_a_sliding_window_and_a_chunk_count_depths(seed: int, length: int, size: int, chunked: bool) -> None:
    """Boolean, additive and ``mask_mod`` cut what a row sees by depth, as a path alone would be cut by position."""
    parents, ends = random_ends(seed, 2, length)
    depths = depths_of(parents)
    near: dict[str, Any] = {"chunk" if chunked else "sliding_window": size}
    mask = tree_bool_mask(ends, depths=depths, **near)
    added = tree_additive_mask(ends, torch.float64, depths=depths, **near)
    assert torch.equal(added == 0, mask)
    rule = tree_mask_mod(ends, depths, **near)
    index = torch.arange(length)
    for window in range(2):
        sees = near_relation(parents[window].tolist(), *((None, size) if chunked else (size, None)))
        assert torch.equal(mask[window, 0], sees)
        assert torch.equal(rule(torch.tensor(window), torch.tensor(0), index[:, None], index[None, :]), sees)


def test_windows_and_chunks_that_cannot_be_are_refused() -> None:
    """A window without depths, both at once, or an empty one."""
    parents, ends = random_ends(3, 1, 10)
    depths = depths_of(parents)
    for build in (tree_bool_mask, tree_block_mask, tree_mask_mod):
        with pytest.raises(ValueError, match="count depths"):
            build(ends, sliding_window=3)
    with pytest.raises(ValueError, match="count depths"):
        tree_bool_mask(ends, depths=depths[:, :-1], sliding_window=3)
    for near in ({"sliding_window": 3, "chunk": 3}, {"sliding_window": 0}, {"chunk": 0}):
        with pytest.raises(ValueError, match="1 up"):
            tree_bool_mask(ends, depths=depths, **near)
    assert least_depths(torch.tensor([0, 4, 5])).tolist() == [0, 0, 0]


@given(seed=st.integers(0, 10_000), length=st.integers(2, 40))
def test_the_mask_is_the_ancestor_relation(seed: int, length: int) -> None:
    """Boolean, additive, ``mask_mod`` and ``allowed`` say the same: a row sees itself and its ancestors."""
    parents, ends = random_ends(seed, 2, length)
    mask = tree_bool_mask(ends)
    added = tree_additive_mask(ends, torch.float32)
    assert mask.shape == added.shape == (2, 1, length, length)
    assert torch.equal(added == 0, mask)
    assert (added[~mask] == torch.finfo(torch.float32).min).all()
    rule = tree_mask_mod(ends)
    index = torch.arange(length)
    for window in range(2):
        sees = torch.zeros(length, length, dtype=torch.bool)
        for row in range(length):
            above = row
            while above >= 0:
                sees[row, above] = True
                above = int(parents[window, above])
        assert torch.equal(mask[window, 0], sees)
        number = torch.tensor(window)
        assert torch.equal(rule(number, torch.tensor(0), index[:, None], index[None, :]), sees)


def test_allowed_is_false_for_padding_and_refuses_rows_outside() -> None:
    """Padding neither queries nor is a key, though in mask tensors it sees itself; rows outside are an error."""
    row = {
        "inputs": np.array([1, 2], dtype=np.int32),
        "targets": np.array([2, 3], dtype=np.int32),
        "depths": np.array([0, 1], dtype=np.int32),
        "parents": np.array([-1, 0], dtype=np.int32),
        "subtree_ends": np.array([2, 2], dtype=np.int32),
        "segments": np.zeros(2, dtype=np.int32),
        "counts": np.ones(2, dtype=np.int32),
        "weights": np.ones(2, dtype=np.float32),
        "owned": np.ones(2, dtype=bool),
        "num_rows": 2,
        "window": 0,
        "denominator": 2.0,
    }
    batch = collate([row], 4)
    window = {"subtree_ends": batch["subtree_ends"][0], "num_rows": batch["num_rows"][0]}
    answers = [[allowed(window, query, key) for key in range(4)] for query in range(4)]
    assert answers == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, False, False],
        [False, False, False, False],
    ]
    mask = tree_bool_mask(batch["subtree_ends"])[0, 0]
    assert mask[2].tolist() == [False, False, True, False]
    assert mask[3].tolist() == [False, False, False, True]
    for query, key in ((4, 0), (0, 4), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="outside a window of 4 rows"):
            allowed(window, query, key)


def test_subtree_ends_take_any_shape_and_refuse_what_is_no_forest() -> None:
    """One window or a batch of them; rows out of preorder are an error."""
    assert subtree_ends(torch.tensor([-1, 0, 1, 1])).tolist() == [4, 4, 3, 4]
    assert subtree_ends(torch.tensor([[-1, 0], [-1, -1]])).tolist() == [[2, 2], [1, 2]]
    with pytest.raises(TreeError):
        subtree_ends(torch.tensor([-1, 0, -1, 1]))


def reference(ends: Tensor, block_size: int) -> Any:
    """Return FlexAttention's own block mask, from the dense relation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_block_mask(
            tree_mask_mod(ends), ends.shape[0], None, ends.shape[1], ends.shape[1], device="cpu", BLOCK_SIZE=block_size
        )


LISTS = [f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")]


def differences(ends: Tensor, block_size: int) -> list[str]:
    """Return which lists of the direct block mask differ from the reference's, counts and indices alike."""
    found, expected = tree_block_mask(ends, block_size), reference(ends, block_size)
    assert found.seq_lengths == expected.seq_lengths
    assert found.BLOCK_SIZE == expected.BLOCK_SIZE
    differing = []
    for name in LISTS:
        left, right = getattr(found, name), getattr(expected, name)
        assert left.shape == right.shape, name
        assert left.dtype == right.dtype == torch.int32
        assert left.is_contiguous()
        if not torch.equal(left, right):
            differing.append(name)
    return differing


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("group", range(3))
def test_the_block_mask_is_flex_attentions_own(block_size: int, group: int) -> None:
    """On hundreds of random windows every list equals ``create_block_mask``'s, entry for entry."""
    generator = np.random.default_rng((block_size, group))
    for seed in range(group, 90, 3):
        length = int(generator.integers(2, 5 * block_size))
        _, ends = random_ends(seed, int(generator.integers(1, 4)), length)
        assert differences(ends, block_size) == [], (seed, length)


def test_a_block_rule_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above fails for a rule that reaches one block too far, or calls one block too many full."""
    _, ends = random_ends(1, 2, 200)
    assert differences(ends, 16) == []
    right = masks_module._block_lists
    for shift in (1, -1):

        def wrong(blocks: Tensor, shift: int = shift) -> tuple[Tensor, Tensor]:
            return right(torch.roll(blocks, shift, dims=-1))

        monkeypatch.setattr(masks_module, "_block_lists", wrong)
        assert differences(ends, 16)
    monkeypatch.setattr(masks_module, "_block_lists", right)
    shifted = torch.minimum(ends + 16, torch.tensor(200, dtype=torch.int32))
    assert any(
        not torch.equal(getattr(tree_block_mask(shifted, 16), name), getattr(reference(ends, 16), name))
        for name in LISTS
    )


def test_permitted_pairs_are_the_same_query_by_query_and_block_by_block() -> None:
    """Visiting the block mask's blocks, full ones whole, gives exactly the permitted pairs, each once."""
    _, ends = random_ends(7, 1, 150)
    block = 16
    mask = tree_block_mask(ends, block)
    dense = tree_bool_mask(ends)[0, 0]
    visited = []
    num_blocks = -(-150 // block)
    for query_block in range(num_blocks):
        for name, whole in (("kv", False), ("full_kv", True)):
            count = int(getattr(mask, f"{name}_num_blocks")[0, 0, query_block])
            for key_block in getattr(mask, f"{name}_indices")[0, 0, query_block, :count].tolist():
                for query in range(query_block * block, min((query_block + 1) * block, 150)):
                    keys = range(key_block * block, min((key_block + 1) * block, 150))
                    visited += [(query, key) for key in keys if whole or dense[query, key]]
    assert sorted(visited) == [tuple(pair) for pair in dense.nonzero().tolist()]


def blocks_of(mask: Any, full: bool) -> set[tuple[int, int, int]]:
    """Return (window, query block, key block) of a block mask, from its keys' lists, which its queries' must equal."""
    prefix = "full_" if full else ""
    found = {}
    for side in ("kv", "q"):
        counts = getattr(mask, f"{prefix}{side}_num_blocks")[:, 0]
        indices = getattr(mask, f"{prefix}{side}_indices")[:, 0]
        found[side] = {
            (window, row, column) if side == "kv" else (window, column, row)
            for window, row in np.ndindex(*counts.shape)
            for column in indices[window, row, : int(counts[window, row])].tolist()
        }
    assert found["kv"] == found["q"]
    return found["kv"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("block_size", [2, 16, 32])
def test_the_block_mask_of_a_window_has_its_full_blocks_and_misses_none(block_size: int, chunked: bool) -> None:
    """Full blocks are ``create_block_mask``'s own; every partial block of it is there, and few that are empty."""
    generator = np.random.default_rng((block_size, chunked))
    kept = demoted = empty = partial = 0
    for seed in range(60):
        length = int(generator.integers(2, 6 * block_size))
        parents, ends = random_ends(seed, int(generator.integers(1, 3)), length)
        if seed % 3 == 0:  # long chains, which have full blocks
            parents = torch.arange(-1, length - 1, dtype=torch.int32)[None]
            ends = subtree_ends(parents)
        depths = depths_of(parents)
        near: dict[str, Any] = {"chunk" if chunked else "sliding_window": int(generator.integers(1, 6 * block_size))}
        found = tree_block_mask(ends, block_size, depths=depths, **near)
        rule = tree_mask_mod(ends, depths, **near)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = create_block_mask(rule, ends.shape[0], None, length, length, device="cpu", BLOCK_SIZE=block_size)
        full = blocks_of(found, full=True)
        assert full == blocks_of(expected, full=True), (seed, near)
        some, needed = blocks_of(found, full=False), blocks_of(expected, full=False)
        assert needed <= some
        assert not full & some
        kept += len(full)
        demoted += len(blocks_of(tree_block_mask(ends, block_size), full=True) - full)
        empty, partial = empty + len(some - needed), partial + len(some)
    assert kept > 5
    assert demoted > 10
    assert empty < partial / 4


def test_wrong_arguments_are_refused() -> None:
    """The block mask wants (batch, length) int32 ends and blocks of at least two rows."""
    _, ends = random_ends(3, 1, 10)
    for bad in (ends[0], ends.long()):
        with pytest.raises(ValueError, match="int32"):
            tree_block_mask(bad)
    with pytest.raises(ValueError, match="2 up"):
        tree_block_mask(ends, 1)


def test_no_tensor_of_all_pairs_is_made() -> None:
    """At 32,768 rows the block mask's tensors, and what its building allocates, stay far below one pair matrix."""
    length = 32_768
    parents = torch.arange(-1, length - 1, dtype=torch.int32)[None]
    ends = subtree_ends(parents)
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, Tensor):
                    largest = max(largest, value.untyped_storage().nbytes())
            return result

    with Sizes():  # type: ignore[no-untyped-call]  # torch's own
        tree_block_mask(ends)
    assert 0 < largest <= 8 * (length // 128) ** 2
    assert largest < length * length / 1000


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
@pytest.mark.parametrize("windowed", [False, True])
def test_compiled_flex_attention_is_one_graph_and_equals_sdpa(windowed: bool) -> None:
    """Over changing windows of one length FlexAttention compiles once, and agrees with SDPA in float32.

    So it does over changing sizes of sliding windows and chunks, which are not compiled in.
    """
    torch._dynamo.reset()
    graphs = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._inductor.compile(module, inputs)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled = torch.compile(flex_attention, backend=backend, dynamic=False)
        generator = torch.Generator().manual_seed(0)
        for seed in range(5):
            parents, ends = random_ends(seed, 2, 256)
            near: dict[str, Any] = {}
            if windowed:
                near = {"depths": depths_of(parents), ("chunk" if seed % 2 else "sliding_window"): 3 + seed}
            query, key, value = (torch.randn(2, 2, 256, 16, generator=generator) for _ in range(3))
            found = compiled(query, key, value, block_mask=tree_block_mask(ends, **near))
            expected = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=tree_bool_mask(ends, **near)
            )
            assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert graphs == 1
