"""Attention by segments against attention written out, over all pairs, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_training_masks import depths_of, near_relation, random_ends
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagpack_cli.training import segments as module
from dagpack_cli.training import subtree_ends
from dagpack_cli.training.attention import attend, mask_for
from dagpack_cli.training.segments import interval_mask, is_interval_mask, segment_attention

Tensors = tuple[Tensor, Tensor, Tensor]


def inputs(seed: int, shape: tuple[int, int], heads: tuple[int, int], widths: tuple[int, int] = (8, 8)) -> Tensors:
    """Return queries, keys and values of (batch, length), in the memory order that a projection leaves."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads[0], widths[0]), (heads[1], widths[0]), (heads[1], widths[1]))
    query, key, value = (
        torch.randn(*shape, *size, dtype=torch.float64, generator=generator).transpose(1, 2).requires_grad_()
        for size in sizes
    )
    return query, key, value


def written_out(tensors: Tensors, relation: Tensor, scale: float) -> Tensor:
    """Return attention by its formula: (batch, length, heads, width)."""
    query, key, value = tensors
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~relation[:, None], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def difference(found: Tensor, expected: Tensor, tensors: Tensors, seed: int) -> float:
    """Return the largest difference of two results, and of their gradients at the same random direction."""
    direction = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(seed))
    pairs = [(found, expected)]
    gradients = (torch.autograd.grad((result * direction).sum(), tensors) for result in (found, expected))
    pairs += list(zip(*gradients, strict=True))
    return max(float((left - right).detach().abs().max()) for left, right in pairs)


def forest(seed: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return parents and ends of random windows; by turns branchy ones and ones of many tiny trees."""
    if seed % 4:
        return random_ends(seed, batch, length)
    generator = np.random.default_rng(seed)
    windows = []
    for _ in range(batch):
        parents: list[int] = []
        while len(parents) < length:
            start = len(parents)
            parents += [-1, *range(start, start + int(generator.integers(0, 4)))]
        windows.append(parents[:length])
    parents_of = torch.tensor(windows, dtype=torch.int32)
    return parents_of, subtree_ends(parents_of)


@pytest.mark.parametrize("call", [0.0, module._CALL, 1e12], ids=["many blocks", "as measured", "one block"])
@pytest.mark.parametrize("near", [{}, {"sliding_window": 5}, {"sliding_window": 40}, {"chunk": 9}], ids=str)
def test_segments_are_attention_over_the_tree(
    call: float, near: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and gradients of random windows to 1e-12, however the rows are cut, grouped heads and odd widths too."""
    monkeypatch.setattr(module, "_CALL", call)
    if call == 0:
        monkeypatch.setattr(module, "_ROWS_PER_KEY", 0)
    module._cached_plan.cache_clear()
    blocks = set()
    for seed in range(24):
        batch, length = 1 + seed % 3, 1 + 17 * seed % 300
        parents, ends = forest(seed, batch, length)
        tensors = inputs(seed, (batch, length), ((4, 2), (3, 3), (4, 1))[seed % 3], ((8, 8), (8, 6))[seed % 2])
        intervals = interval_mask(ends, depths=depths_of(parents), **near)
        window, chunk = near.get("sliding_window"), near.get("chunk")
        relation = torch.stack([near_relation(rows, window, chunk) for rows in parents.tolist()])
        found = segment_attention(*tensors, intervals, scale=0.7)
        assert found.shape == (batch, length, tensors[0].shape[1], tensors[2].shape[3])
        assert difference(found, written_out(tensors, relation, 0.7), tensors, seed) <= 1e-12
        blocks.add(len(module._plan_of(intervals, tensors[0].shape[1], 8).blocks))
    module._cached_plan.cache_clear()
    assert max(blocks) > 20 if call == 0 else max(blocks) < 20


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_segments_take_less_precise_numbers(dtype: torch.dtype, limit: float) -> None:
    """Float32 and bfloat16 come out in their own dtype, close to float64, and so do gradients."""
    parents, ends = random_ends(5, 2, 300)
    tensors = inputs(5, (2, 300), (4, 2))
    relation = torch.stack([near_relation(rows, None, None) for rows in parents.tolist()])
    exact = written_out(tensors, relation, 8**-0.5)
    query, key, value = (part.detach().to(dtype).requires_grad_() for part in tensors)
    found = segment_attention(query, key, value, interval_mask(ends))
    assert found.dtype == dtype
    assert float((found.double() - exact).detach().abs().max()) <= limit
    (expected,) = torch.autograd.grad(exact.sum(), tensors[2:])
    (gradient,) = torch.autograd.grad(found.sum(), [value])
    assert gradient.dtype == dtype
    assert float((gradient.double() - expected).abs().max()) <= limit * float(expected.abs().max())


def test_padding_is_copied_and_a_batch_of_padding_still_has_gradients() -> None:
    """Padding's output is its own value, to the bit; queries of a batch of nothing else get gradients, of 0."""
    ends = torch.arange(1, 501, dtype=torch.int32).repeat(2, 1)
    tensors = inputs(1, (2, 500), (2, 1))
    found = segment_attention(*tensors, interval_mask(ends))
    assert torch.equal(found[:, 1:], tensors[2].expand(2, 2, 500, 8).transpose(1, 2)[:, 1:])
    gradients = torch.autograd.grad(found.sum(), tensors)
    assert float(gradients[0].abs().max()) <= 1e-12
    assert torch.allclose(gradients[2], torch.full_like(gradients[2], 2.0))
    plan = module._plan_of(interval_mask(ends), 2, 8)
    assert len(plan.blocks) == 3
    for padding in (3, 100):  # at the end of a window any number is copied, inside only many are
        parents = [*range(-1, 299), *[-1] * 40, *range(339, 399), *[-1] * padding]
        parents[340] = -1
        plan = module._plan_of(interval_mask(subtree_ends(torch.tensor([parents], dtype=torch.int32))), 8, 64)
        copied = [rows for block, rows in zip(plan.blocks, plan.rows, strict=True) if block.copied]
        assert copied == [40, padding]


def test_a_dropped_weight_of_a_copied_row_is_dropped_too() -> None:
    """With a dropout of a half, rows that see only themselves are 0 or doubled, head by head."""
    ends = torch.arange(1, 401, dtype=torch.int32)[None]
    query, key, value = inputs(2, (1, 400), (2, 2))
    torch.manual_seed(0)
    found = segment_attention(query, key, value, interval_mask(ends), dropout=0.5)[0, 1:]
    own = value.transpose(1, 2)[0, 1:]
    dropped = (found == 0).all(-1)
    assert torch.allclose(found[~dropped], 2 * own[~dropped])
    assert 0.4 < float(dropped.double().mean()) < 0.6


def test_blocks_are_few_where_branches_are_tiny_and_cut_where_they_are_not() -> None:
    """Thousands of tiny branches share blocks; completions of one prompt have theirs; a chain is one causal call."""
    generator = np.random.default_rng(0)
    tiny, fork = list(range(-1, 511)), 511
    while len(tiny) < 4_096:
        fork = max(0, fork - int(generator.integers(0, 2)))
        tiny += [fork, len(tiny)]
    completions = list(range(-1, 999))
    for _ in range(4):
        start = len(completions)
        completions += [999, *range(start, start + 249)]
    plans = {}
    for name, parents in (("tiny", tiny), ("completions", completions), ("chain", list(range(-1, 3_000)))):
        ends = subtree_ends(torch.tensor([parents], dtype=torch.int32))
        plans[name] = module._plan_of(interval_mask(ends), 8, 64)
    assert 4 < len(plans["tiny"].blocks) < 100
    starts = {0, *np.cumsum(plans["completions"].rows).tolist()}
    assert {0, 1_250, 1_500, 1_750, 2_000} <= starts
    assert plans["completions"].blocks[0].causal
    assert [block.causal for block in plans["chain"].blocks] == [True]
    assert not plans["chain"].gathers


def test_no_tensor_of_all_pairs_is_made() -> None:
    """At 16,384 rows in branches of 256, no tensor that forward or backward makes comes near one of all pairs."""
    length = 16_384
    parents = list(range(-1, 255))
    while len(parents) < length:
        start = len(parents)
        parents += [255, *range(start, start + 255)]
    ends = subtree_ends(torch.tensor([parents[:length]], dtype=torch.int32))
    query, key, value = (part.detach().float().requires_grad_() for part in inputs(0, (1, length), (1, 1), (4, 4)))
    largest = 0

    class Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, Tensor):
                    largest = max(largest, value.untyped_storage().nbytes())
            return result

    with Sizes():  # type: ignore[no-untyped-call]  # torch's own
        found = segment_attention(query, key, value, interval_mask(ends))
        torch.autograd.grad(found.sum(), (query, key, value))
    assert 0 < largest < length * length / 64


def test_intervals_pass_for_a_mask_and_nothing_else_passes_for_them() -> None:
    """Four-dimensional int32 is theirs alone; those of another batch or length are refused."""
    parents, ends = random_ends(1, 2, 30)
    plain = interval_mask(ends)
    near = interval_mask(ends, depths=depths_of(parents), sliding_window=3)
    assert (plain.shape, near.shape) == ((2, 1, 1, 30), (2, 1, 3, 30))
    assert is_interval_mask(plain)
    assert is_interval_mask(near)
    for other in (plain.bool(), plain.float(), plain.long(), ends, near[:, :, :2], None):
        assert not is_interval_mask(other)
    tensors = inputs(1, (2, 30), (2, 2))
    for wrong in (plain[:1], plain[..., :-1]):
        with pytest.raises(ValueError, match="intervals"):
            segment_attention(*tensors, wrong)
    with pytest.raises(ValueError, match="count depths"):
        interval_mask(ends, sliding_window=3)


def test_the_built_in_model_takes_segments_where_windows_are_long() -> None:
    """On a CPU short windows go through one masked call, long ones by segments; both agree."""
    for length, segmented in ((200, False), (400, True)):
        _, ends = random_ends(9, 2, length)
        mask = mask_for(ends)
        assert is_interval_mask(mask) == segmented
        query, key, value = inputs(3, (2, length), (2, 2))
        other = torch.stack([near_relation(rows, None, None) for rows in random_ends(9, 2, length)[0].tolist()])
        expected = attend(query, key, value, other[:, None])
        found = attend(query, key, value, mask)
        assert found.shape == query.shape
        assert float((found - expected).detach().abs().max()) <= 1e-12
