"""The tree mask in every form a model may want, from one integer a row.

A row sees itself and its ancestors: query ``q`` may use key ``k`` exactly when
``k <= q < subtree_ends[k]``. Padding is a root of its own: it sees itself and nothing else sees it,
so that no row of a softmax is empty.

The block mask is built from the intervals directly. For key block ``kb`` of size S let ``hi`` be the
block after the last query block that a key of it reaches, ceil(max end / S), and ``fu`` the block up to
which all its keys reach, floor(min end / S). Then (qb, kb) is not empty exactly when kb <= qb < hi, and
full exactly when kb < qb < fu: below the diagonal every key precedes every query, so only the ends
decide; on it, causality cuts the block. O(rows + blocks^2), where a mask of all pairs costs O(rows^2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dagpack_cli import preorder

__all__ = [
    "allowed",
    "subtree_ends",
    "tree_additive_mask",
    "tree_block_mask",
    "tree_bool_mask",
    "tree_mask_mod",
]

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def subtree_ends(parents: Tensor) -> Tensor:
    """Return the exclusive end of every row's subtree.

    Args:
        parents: shape (length,) or (batch, length), integer; -1 at a root and in padding.

    Returns:
        the same shape and device, int32.

    Raises:
        TreeError: rows are not a preorder forest.

    O(length) a window, on the CPU; `collate` has done it already for batches of a loader.
    """
    windows = parents.detach().cpu().numpy()
    ends = np.stack([preorder.subtree_ends(window) for window in windows.reshape(-1, windows.shape[-1])])
    return torch.from_numpy(ends.reshape(windows.shape)).to(parents.device)


def allowed(window: Mapping[str, Any], query: int, key: int) -> bool:
    """Tell whether a query may use a key in one window of a batch or of `PackedWindows`.

    Args:
        window: with ``subtree_ends``, of shape (length,), and ``num_rows``; rows from there on are padding.
        query: a row, 0 up to length.
        key: likewise.

    Returns:
        False wherever either is padding.

    Raises:
        IndexError: a row outside the window.
    """
    ends, num_rows = window["subtree_ends"], int(window["num_rows"])
    for name, row in (("query", query), ("key", key)):
        if not 0 <= row < len(ends):
            raise IndexError(f"{name} {row} is outside a window of {len(ends)} rows")
    return query < num_rows and key <= query < int(ends[key])


def tree_mask_mod(ends: Tensor) -> MaskMod:
    """Return FlexAttention's ``mask_mod`` of a batch of windows.

    Args:
        ends: shape (batch, length), int32, on the device of the attention.

    One factory for all windows: a compiled graph is made once, whatever the ends hold.
    """

    def tree_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx < ends[b, kv_idx])

    return tree_mask


def tree_block_mask(ends: Tensor, block_size: int = 128) -> BlockMask:
    """Return FlexAttention's block mask of a batch of windows, as ``create_block_mask`` would, block for block.

    Args:
        ends: shape (batch, length), int32; on any device, on which the result is built.
        block_size: rows of a block, at least 2.

    Raises:
        ValueError: ``ends`` is not two-dimensional int32, or the block size is below 2.

    Time and memory O(batch x (length + blocks^2)); no tensor of all pairs.
    """
    if ends.ndim != 2 or ends.dtype != torch.int32 or block_size < 2:
        raise ValueError(f"ends {tuple(ends.shape)} {ends.dtype}, block size {block_size}: (batch, length) int32, 2 up")
    length = ends.shape[1]
    num_blocks = -(-length // block_size)
    padded = torch.nn.functional.pad(ends, (0, num_blocks * block_size - length))
    blocks = padded.view(ends.shape[0], num_blocks, block_size)
    reached = (blocks.amax(-1) + block_size - 1) // block_size
    filled = blocks.amin(-1) // block_size
    index = torch.arange(num_blocks, device=ends.device, dtype=torch.int32)
    query, key = index[:, None], index[None, :]
    full = (key < query) & (query < filled[:, None, :])
    partial = (key <= query) & (query < reached[:, None, :]) & ~full
    key_lists = (*_block_lists(partial), *_block_lists(full))
    query_lists = (*_block_lists(partial.transpose(1, 2)), *_block_lists(full.transpose(1, 2)))
    return BlockMask(
        (length, length),
        *key_lists,
        *query_lists,
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=tree_mask_mod(ends),
    )


def _block_lists(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for every row of a (batch, rows, columns) relation, how many columns it has and which, ascending.

    Entries after the count are undefined by FlexAttention's contract; here they are the columns left
    over, ascending, as a stable sort leaves them.
    """
    counts = blocks.sum(-1, dtype=torch.int32)
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return counts[:, None].contiguous(), order[:, None].to(torch.int32).contiguous()


def tree_bool_mask(ends: Tensor) -> Tensor:
    """Return the mask as booleans, true where a query may use a key: what SDPA takes.

    Args:
        ends: shape (batch, length), integer.

    Returns:
        shape (batch, 1, length, length), bool. O(length^2): for short windows, or without FlexAttention.
    """
    rows = torch.arange(ends.shape[1], device=ends.device)
    query, key = rows[:, None], rows[None, :]
    return ((key <= query) & (query < ends[:, None, :]))[:, None]


def tree_additive_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as numbers to add to scores: 0 where a query may use a key, else the lowest of ``dtype``.

    Args:
        ends: shape (batch, length), integer.
        dtype: floating point; that of the scores. "Eager" attention of many models takes nothing else.

    Returns:
        shape (batch, 1, length, length).
    """
    mask = tree_bool_mask(ends)
    return torch.zeros(mask.shape, dtype=dtype, device=ends.device).masked_fill_(~mask, torch.finfo(dtype).min)
