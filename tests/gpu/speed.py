"""Speed and memory of layouts: a stack of layers, attention alone, and what masks cost.

Everything is forward and backward over batches of one window of a fixed length, in bfloat16, random weights.
A layout's rate is the pairs (or rows) of its average window over the average of its windows' median times:
pairs are the examples' own, so that a pair which the trie merged counts as often as examples have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from dagpack_cli.training import PackedWindows, collate, model_inputs, tree_block_mask, tree_mask_mod
from dagpack_cli.training.attention import compiled_flex_attention
from dagpack_cli.training.reader import Batch, to_device
from dagpack_cli.training.segments import interval_mask, is_interval_mask, segment_attention

from .clock import median_ms, peak_megabytes, wall_ms
from .models import Stack

__all__ = ["MASKS", "Sample", "measure_attention", "measure_causal", "measure_layers", "measure_mask"]

MASKS = ("inputs", "tree_block_mask", "create_block_mask", "compiled")


class Sample:
    """Some windows of a layout on a device, evenly spread over all, and what its average window has.

    Args:
        windows: of the layout.
        num: how many to time.
        device: where they go.
    """

    def __init__(self, windows: PackedWindows, num: int, device: torch.device) -> None:
        all_windows = [windows[number] for number in range(len(windows))]
        self.num_windows = len(windows)
        self.rows = float(np.mean([window["num_rows"] for window in all_windows]))
        self.pairs = float(np.mean([window["counts"].sum() for window in all_windows]))
        chosen = np.unique(np.linspace(0, len(windows) - 1, num).astype(int)).tolist()
        self.batches: list[Batch] = [
            to_device(collate([all_windows[number]], windows.window_len), device) for number in chosen
        ]

    def report(self, milliseconds: list[float], megabytes: list[float]) -> dict[str, Any]:
        """Return what times and peaks of the windows come to."""
        mean = float(np.mean(milliseconds))
        return {
            "windows": self.num_windows,
            "rows": self.rows,
            "pairs": self.pairs,
            "ms": mean,
            "pairs_per_second": 1_000 * self.pairs / mean,
            "rows_per_second": 1_000 * self.rows / mean,
            "peak_megabytes": max(megabytes),
        }


def _measured(steps: list[Callable[[], Any]], sample: Sample, device: torch.device, repeats: int) -> dict[str, Any]:
    """Time every step, the first one also to warm up."""
    times, peaks = [], []
    for number, step in enumerate(steps):
        times.append(median_ms(step, device, repeats, warmup=1 if number else 3))
        peaks.append(peak_megabytes(step, device))
    return sample.report(times, peaks)


def measure_layers(model: Any, sample: Sample, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return the speed of a stack of layers over a layout; its masks are made anew in every step."""
    batch = sample.batches[0]
    above = torch.randn(*batch["input_ids"].shape, model.config.hidden_size, device=device, dtype=model.dtype)

    def step(batch: Batch) -> None:
        model.zero_grad(set_to_none=True)
        model(**model_inputs(model.config, batch)).last_hidden_state.backward(above)

    return _measured([partial(step, batch) for batch in sample.batches], sample, device, repeats)


def measure_attention(size: Stack, sample: Sample, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return the speed of one layer's attention over a layout, masks made before."""
    length = sample.batches[0]["input_ids"].shape[1]
    step = _attention(size, length, device, _attend)
    masks = [_mask(batch["subtree_ends"]) for batch in sample.batches]
    return _measured([partial(step, mask) for mask in masks], sample, device, repeats)


def measure_causal(size: Stack, length: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Return the time of the same attention, plain causal over one sequence, by SDPA: what a kernel can do."""

    def attend(query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    step = _attention(size, length, device, attend)
    return {"ms": median_ms(lambda: step(None), device, repeats, warmup=3)}


def _mask(ends: Tensor) -> Any:
    return tree_block_mask(ends) if ends.is_cuda else interval_mask(ends)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    if is_interval_mask(mask):
        return segment_attention(query, key, value, mask).transpose(1, 2)
    mixed: Tensor = compiled_flex_attention()(query, key, value, block_mask=mask, enable_gqa=True)
    return mixed


def _attention(
    size: Stack, length: int, device: torch.device, attend: Callable[[Tensor, Tensor, Tensor, Any], Tensor]
) -> Callable[[Any], None]:
    """Return a forward and backward pass of attention under a mask, as a function of the mask."""
    query, key, value, above = (
        torch.randn(1, heads, length, size.head_width, device=device, dtype=torch.bfloat16)
        for heads in (size.heads, size.key_heads, size.key_heads, size.heads)
    )
    inputs = (query.requires_grad_(), key.requires_grad_(), value.requires_grad_())

    def step(mask: Any) -> None:
        torch.autograd.grad(attend(query, key, value, mask), inputs, above)

    return step


def measure_mask(kind: str, model: Any, sample: Sample, device: torch.device, repeats: int) -> dict[str, float]:
    """Return milliseconds and peak memory of making the mask of a window.

    Args:
        kind: of `MASKS`: ``inputs``, all that `model_inputs` does; ``tree_block_mask`` alone;
            ``create_block_mask``, from all pairs, or ``compiled``, the same by torch.compile.
        model: whose inputs they are.
        sample: of windows; the first is taken.
        device: where the mask is made.
        repeats: the median of so many.

    Returns:
        ``first_ms``, wall time of the first call, compiling included; ``wall_ms``, that of later ones, waited for;
        ``ms``, on the device; ``peak_megabytes``.
    """
    batch = sample.batches[0]
    ends = batch["subtree_ends"]
    length = ends.shape[1]
    create = torch.compile(create_block_mask) if kind == "compiled" else create_block_mask
    builders: dict[str, Callable[[], Any]] = {
        "inputs": lambda: model_inputs(model.config, batch),
        "tree_block_mask": lambda: tree_block_mask(ends),
    }
    build = builders.get(kind, lambda: create(tree_mask_mod(ends), 1, None, length, length, device=device))
    return {
        "first_ms": wall_ms(build, device, 1, warmup=0),
        "wall_ms": wall_ms(build, device, repeats, warmup=1),
        "ms": median_ms(build, device, repeats, warmup=0),
        "peak_megabytes": peak_megabytes(build, device),
    }
