"""One call for both kinds of attention: SDPA with a boolean mask, FlexAttention with a block mask.

FlexAttention has no backward on the CPU, so a CPU trains through SDPA. On a GPU it is compiled once;
if too many graphs were needed, torch would fall back to scoring all pairs without a word, so that
limit is made an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dagpack_cli.training.masks import tree_block_mask, tree_bool_mask

__all__ = ["attend", "mask_for"]


def mask_for(ends: Tensor) -> Tensor | BlockMask:
    """Return the mask that attention on the device of ``ends`` (batch, length) trains with."""
    return tree_block_mask(ends) if ends.is_cuda else tree_bool_mask(ends)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | BlockMask) -> Tensor:
    """Return attention over (batch, heads, length, head width), masked; the same shape."""
    if isinstance(mask, BlockMask):
        mixed: Tensor = compiled_flex_attention()(query, key, value, block_mask=mask)
        return mixed
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


@cache
def compiled_flex_attention() -> Callable[..., Any]:
    """Return FlexAttention, compiled; raising instead of falling back where graphs do not suffice."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, dynamic=False)
