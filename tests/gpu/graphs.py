"""One compiled graph for all windows, block masks that are FlexAttention's own, and masks in fixed buffers.

Backward passes where the device has them: FlexAttention has none on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from dagpack_cli.training import (
    PackedWindows,
    attention_mask_for,
    collate,
    tree_block_mask,
    tree_bool_mask,
    tree_mask_mod,
    weighted_loss,
)
from dagpack_cli.training.attention import compiled_flex_attention
from dagpack_cli.training.causal_lm import BuiltIn, CausalLM
from dagpack_cli.training.pretrained import Pretrained
from dagpack_cli.training.reader import Batch, to_device
from dagpack_cli.training.static_masks import StaticBlockMask

from .exact import LIMITS

__all__ = ["check_block_masks", "check_one_graph", "check_static_masks", "try_float64"]

_HEADS, _WIDTH = 4, 32
_LIMIT = LIMITS["gradients"]  # of the largest value, in float32


def _batches(windows: PackedWindows, num: int, device: torch.device) -> Iterator[Batch]:
    """Yield windows one by one, over and over if there are fewer."""
    for number in range(num):
        yield to_device(collate([windows[number % len(windows)]], windows.window_len), device)


def check_one_graph(lm: CausalLM, windows: PackedWindows, num: int, device: torch.device) -> dict[str, Any]:
    """Return how many graphs a model compiles over changing windows, which is to be one, and the verdict."""
    torch._dynamo.reset()
    counters.clear()
    trains = device.type == "cuda"
    passes: AbstractContextManager[Any] = nullcontext() if trains else torch.no_grad()
    with passes:
        for batch in _batches(windows, num, device):
            logits = _flex_logits(lm, batch)
            if trains:
                weighted_loss(logits, batch["targets"], batch["weights"], 1.0).backward()  # type: ignore[no-untyped-call]
    graphs = counters["stats"]["unique_graphs"]
    return {"windows": num, "graphs": graphs, "backward": trains, "passed": graphs == 1}


def _flex_logits(lm: CausalLM, batch: Batch) -> Tensor:
    """Return logits by FlexAttention, also on a CPU, where training takes another way."""
    if isinstance(lm, BuiltIn):
        mask = tree_block_mask(batch["subtree_ends"])
        logits: Tensor = lm.module(batch["input_ids"], batch["position_ids"], mask)
        return logits
    assert isinstance(lm, Pretrained)
    module: Any = lm.module
    used = lm.config._attn_implementation
    module.set_attn_implementation("flex_attention")
    try:
        logits = lm.logits(module, batch)
        assert isinstance(attention_mask_for(lm.config, batch), BlockMask)
    finally:
        module.set_attn_implementation(used)
    return logits


def check_block_masks(windows: PackedWindows, num: int, device: torch.device) -> dict[str, Any]:
    """Return whether the lists of block masks made on the device are those of ``create_block_mask`` there."""
    wrong = []
    length = windows.window_len
    for number, batch in enumerate(_batches(windows, num, device)):
        ends = batch["subtree_ends"]
        ours = tree_block_mask(ends)
        theirs = create_block_mask(tree_mask_mod(ends), 1, None, length, length, device=device)
        if ours.kv_indices.device != ends.device or not _same_lists(ours, theirs):
            wrong.append(number)
    return {"windows": num, "wrong": wrong, "passed": not wrong}


def _same_lists(ours: BlockMask, theirs: BlockMask) -> bool:
    """Tell whether two masks name the same blocks in the same order; what stands behind the counts is undefined."""
    for prefix in ("kv", "full_kv", "q", "full_q"):
        counts, expected = (getattr(mask, f"{prefix}_num_blocks") for mask in (ours, theirs))
        if not torch.equal(counts, expected):
            return False
        columns, other = (getattr(mask, f"{prefix}_indices") for mask in (ours, theirs))
        named = torch.arange(columns.shape[-1], device=columns.device) < counts[..., None]
        if not torch.equal(columns[named], other[named]):
            return False
    return True


def check_static_masks(windows: PackedWindows, num: int, device: torch.device) -> dict[str, Any]:
    """Return how attention through one `StaticBlockMask` differs from SDPA's over changing windows, and the verdict.

    On a GPU forward and backward pass are captured once in a CUDA graph and replayed; elsewhere the compiled
    forward pass is called.
    """
    torch._dynamo.reset()
    counters.clear()
    length = windows.window_len
    static = StaticBlockMask(1, length, device)
    places = _places(static.mask)
    generator = torch.Generator(device).manual_seed(0)
    query, key, value, above = (
        torch.randn(1, _HEADS, length, _WIDTH, generator=generator, device=device) for _ in range(4)
    )
    inputs = (query, key, value)
    for rows in inputs:
        rows.requires_grad_(device.type == "cuda")
    step = (_captured if device.type == "cuda" else _called)(inputs, above, static.mask)
    worst = 0.0
    for batch in _batches(windows, num, device):
        static.update(batch["subtree_ends"])
        found = step()
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=tree_bool_mask(batch["subtree_ends"]))
        expected = [mixed.detach()]
        if device.type == "cuda":
            expected += torch.autograd.grad(mixed, inputs, above)
        for one, other in zip(found, expected, strict=True):
            off = float((one - other).abs().max()) / float(other.abs().max())
            worst = off if off != off else max(worst, off)
    graphs, moved = counters["stats"]["unique_graphs"], _places(static.mask) != places
    return {
        "windows": num,
        "captured": device.type == "cuda",
        "graphs": graphs,
        "moved": moved,
        "off": worst,
        "limit": _LIMIT,
        "passed": worst <= _LIMIT and graphs == 1 and not moved,
    }


def _places(mask: BlockMask) -> list[int]:
    """Return the addresses of everything that a kernel reads of a mask."""
    captured = [cell.cell_contents for cell in mask.mask_mod.__closure__ or ()]
    tensors = [*mask.as_tuple(), *captured]
    return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, Tensor)]


def _called(inputs: tuple[Tensor, ...], above: Tensor, mask: BlockMask) -> Callable[[], list[Tensor]]:
    return lambda: [compiled_flex_attention()(*inputs, block_mask=mask)]


def _captured(inputs: tuple[Tensor, ...], above: Tensor, mask: BlockMask) -> Callable[[], list[Tensor]]:
    """Return a replay of attention and its gradients, captured once."""

    def attend() -> list[Tensor]:
        mixed = compiled_flex_attention()(*inputs, block_mask=mask)
        return [mixed, *torch.autograd.grad(mixed, inputs, above)]

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles, and loads kernels, which a capture cannot
        for _ in range(3):
            attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = attend()

    def replay() -> list[Tensor]:
        graph.replay()
        return [output.detach() for output in outputs]

    return replay


def try_float64(device: torch.device) -> dict[str, Any]:
    """Return how FlexAttention in float64 differs from SDPA, forward, or why it refuses; neither is a failure."""
    torch._dynamo.reset()
    length = 256
    ends = torch.full((1, length), length, dtype=torch.int32, device=device)
    query = torch.randn(1, _HEADS, length, _WIDTH, device=device, dtype=torch.float64)
    expected = scaled_dot_product_attention(query, query, query, attn_mask=tree_bool_mask(ends))
    try:
        found = compiled_flex_attention()(query, query, query, block_mask=tree_block_mask(ends))
    except Exception as error:  # of the compiler, of any kind
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:200], "passed": True}
    return {"off": float((found - expected).abs().max()) / float(expected.abs().max()), "passed": True}
