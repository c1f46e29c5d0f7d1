"""One call for every kind of attention: FlexAttention with a block mask, segments, SDPA with a boolean mask.

FlexAttention has no backward on the CPU, so a CPU trains through SDPA, by segments where a window is long
enough to gain. On a GPU FlexAttention is compiled once; if too many graphs were needed, torch would fall
back to scoring all pairs without a word, so that limit is made an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dagpack_cli.errors import UsageError
from dagpack_cli.training.masks import tree_block_mask, tree_bool_mask
from dagpack_cli.training.segments import interval_mask, is_interval_mask, segment_attention

__all__ = ["attend", "mask_for"]

_SHORT = 256  # rows; up to here one masked call costs less than to plan segments


def mask_for(ends: Tensor) -> Tensor | BlockMask:
    """Return the mask that attention on the device of ``ends`` (batch, length) trains with."""
    if ends.is_cuda:
        return tree_block_mask(ends)
    return tree_bool_mask(ends) if ends.shape[1] <= _SHORT else interval_mask(ends)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | BlockMask) -> Tensor:
    """Return attention over (batch, heads, length, head width) under a mask of `mask_for`; the same shape.

    Raises:
        UsageError: batches have come in more shapes than torch makes graphs for.
    """
    if isinstance(mask, BlockMask):
        return _attend_by_blocks(query, key, value, mask)
    if is_interval_mask(mask):
        return segment_attention(query, key, value, mask).transpose(1, 2)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _attend_by_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
    try:
        mixed: Tensor = compiled_flex_attention()(query, key, value, block_mask=mask)
    except torch._dynamo.exc.FailOnRecompileLimitHit:
        raise UsageError(
            "FlexAttention",
            f"a batch of {query.shape[0]} x {query.shape[2]:,} rows, after others of too many shapes",
            "batches of one shape",
            hint="PackedLoader(length=..., fill=True)",
        ) from None
    return mixed


@cache
def compiled_flex_attention() -> Callable[..., Any]:
    """Return FlexAttention, compiled for the sizes it meets, one graph for all windows of one shape.

    Where torch would fall back for want of graphs it raises: ``fullgraph`` does so in every thread, those of
    autograd too, where activations are computed again. What `dagpack_cli.training.fallback` sets, and
    transformers' own compiled call needs, holds for one thread.
    """
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)
