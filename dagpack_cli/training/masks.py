"""The tree mask in every form a model may want, from one integer a row.

A row sees itself and its ancestors: query ``q`` may use key ``k`` exactly when
``k <= q < subtree_ends[k]``. Padding is a root of its own: it sees itself and nothing else sees it,
so that no row of a softmax is empty.

The block mask is built from the intervals directly. For key block ``kb`` of size S let ``hi`` be the
block after the last query block that a key of it reaches, ceil(max end / S), and ``fu`` the block up to
which all its keys reach, floor(min end / S). Then (qb, kb) is not empty exactly when kb <= qb < hi, and
full exactly when kb < qb < fu: below the diagonal every key precedes every query, so only the ends
decide; on it, causality cuts the block. O(rows + blocks^2), where a mask of all pairs costs O(rows^2).

Layers that see only what is near count depths, not rows: siblings lie between a row and its parent. A
sliding window or a chunk is then one number a query, the least depth it sees (`least_depths`), on top of
the tree. A block that is full in the tree stays so when its shallowest key is deep enough for its deepest
query; it is surely empty when its deepest key is too shallow for its shallowest query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dagpack_cli import preorder
from dagpack_cli.training.fallback import refuse_fallback

__all__ = [
    "allowed",
    "least_depths",
    "near_mask_mod",
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


def least_depths(depths: Tensor, *, sliding_window: int | None = None, chunk: int | None = None) -> Tensor:
    """Return the least depth that each row sees in a layer that sees only what is near.

    Args:
        depths: any shape, integer; rows' depths from 0, as ``position_ids`` of a batch.
        sliding_window: a row sees this many depths, its own included: as transformers counts.
        chunk: a row sees the depths of its own chunk, where chunks are this many depths.

    Returns:
        the same shape and device, int32; 0 everywhere where neither is given.

    Raises:
        ValueError: both are given, or one below 1.
    """
    sizes = [size for size in (sliding_window, chunk) if size is not None]
    if len(sizes) > 1 or min(sizes, default=1) < 1:
        raise ValueError(f"sliding_window {sliding_window}, chunk {chunk}: one of them, 1 up")
    depths = depths.to(torch.int32)
    if sliding_window is not None:
        return (depths - (sliding_window - 1)).clamp_min_(0)
    return depths - depths % chunk if chunk is not None else torch.zeros_like(depths)


def tree_mask_mod(
    ends: Tensor, depths: Tensor | None = None, *, sliding_window: int | None = None, chunk: int | None = None
) -> MaskMod:
    """Return FlexAttention's ``mask_mod`` of a batch of windows.

    Args:
        ends: shape (batch, length), int32, on the device of the attention.
        depths: shape (batch, length), integer; where a window or chunk is given.
        sliding_window: as `least_depths`.
        chunk: as `least_depths`.

    Raises:
        ValueError: a window or chunk without depths, or one that cannot be.

    One factory for all windows: a compiled graph is made once, whatever the tensors hold. The sizes are
    in tensors too, for a number would be compiled in.
    """
    near = _near(ends, depths, sliding_window, chunk)
    if near is not None:
        return near_mask_mod(ends, *near)

    def tree_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx < ends[b, kv_idx])

    return tree_mask


def near_mask_mod(ends: Tensor, depths: Tensor, least: Tensor) -> MaskMod:
    """Return the ``mask_mod`` of layers that see only what is near.

    Args:
        ends: shape (batch, length), int32, on the device of the attention; like the others.
        depths: likewise.
        least: likewise; of `least_depths`.

    It keeps these tensors themselves: what is written into them later, it reads.
    """

    def near_tree_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx < ends[b, kv_idx]) & (depths[b, kv_idx] >= least[b, q_idx])

    return near_tree_mask


def _near(
    ends: Tensor, depths: Tensor | None, sliding_window: int | None, chunk: int | None
) -> tuple[Tensor, Tensor] | None:
    """Return depths as int32 and the least that each row sees; None where a row sees all its ancestors."""
    if sliding_window is None and chunk is None:
        return None
    if depths is None or depths.shape != ends.shape:
        shape = None if depths is None else tuple(depths.shape)
        raise ValueError(f"depths {shape}: a sliding window and a chunk count depths, of shape {tuple(ends.shape)}")
    return depths.to(torch.int32), least_depths(depths, sliding_window=sliding_window, chunk=chunk)


def tree_block_mask(
    ends: Tensor,
    block_size: int = 128,
    *,
    depths: Tensor | None = None,
    sliding_window: int | None = None,
    chunk: int | None = None,
) -> BlockMask:
    """Return FlexAttention's block mask of a batch of windows.

    Args:
        ends: shape (batch, length), int32; on any device, on which the result is built.
        block_size: rows of a block, at least 2.
        depths: shape (batch, length), integer; where a window or chunk is given.
        sliding_window: as `least_depths`.
        chunk: as `least_depths`.

    Returns:
        what ``create_block_mask`` would, block for block. With a sliding window or a chunk, full blocks are
        its full blocks; among the partial ones some may be empty, which costs time and changes nothing.

    Raises:
        ValueError: ``ends`` is not two-dimensional int32, the block size is below 2, a window or chunk
            without depths.

    Time and memory O(batch x (length + blocks^2)); no tensor of all pairs, and nothing waits for the device.
    Whoever attends with it is kept from falling back to uncompiled FlexAttention: see `refuse_fallback`.
    """
    refuse_fallback()
    if ends.ndim != 2 or ends.dtype != torch.int32 or block_size < 2:
        raise ValueError(f"ends {tuple(ends.shape)} {ends.dtype}, block size {block_size}: (batch, length) int32, 2 up")
    near = _near(ends, depths, sliding_window, chunk)
    length = ends.shape[1]
    blocks = _in_blocks(ends, block_size)
    reached = (blocks.amax(-1) + block_size - 1) // block_size
    filled = blocks.amin(-1) // block_size
    index = torch.arange(blocks.shape[1], device=ends.device, dtype=torch.int32)
    query, key = index[:, None], index[None, :]
    full = (key < query) & (query < filled[:, None, :])
    touched = (key <= query) & (query < reached[:, None, :])
    if near is not None:
        keys, queries = (_in_blocks(rows, block_size) for rows in near)
        full &= queries.amax(-1)[:, :, None] <= keys.amin(-1)[:, None, :]
        touched &= queries.amin(-1)[:, :, None] <= keys.amax(-1)[:, None, :]
    partial = touched & ~full
    key_lists = (*_block_lists(partial), *_block_lists(full))
    query_lists = (*_block_lists(partial.transpose(1, 2)), *_block_lists(full.transpose(1, 2)))
    return BlockMask(
        (length, length),
        *key_lists,
        *query_lists,
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=tree_mask_mod(ends) if near is None else near_mask_mod(ends, *near),
    )


def _in_blocks(rows: Tensor, block_size: int) -> Tensor:
    """Return (batch, length) numbers as (batch, blocks, block_size), the last block filled up with 0.

    A block that is not whole is never full, and with depths of 0 beyond it is at most taken for one that
    is not empty.
    """
    batch, length = rows.shape
    num_blocks = -(-length // block_size)
    padded = torch.nn.functional.pad(rows, (0, num_blocks * block_size - length))
    return padded.view(batch, num_blocks, block_size)


def _block_lists(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for every row of a (batch, rows, columns) relation, how many columns it has and which, ascending.

    Entries after the count are undefined by FlexAttention's contract; here they are the columns left
    over, ascending, as a stable sort leaves them.
    """
    counts = blocks.sum(-1, dtype=torch.int32)
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return counts[:, None].contiguous(), order[:, None].to(torch.int32).contiguous()


def tree_bool_mask(
    ends: Tensor, *, depths: Tensor | None = None, sliding_window: int | None = None, chunk: int | None = None
) -> Tensor:
    """Return the mask as booleans, true where a query may use a key: what SDPA takes.

    Args:
        ends: shape (batch, length), integer.
        depths: shape (batch, length), integer; where a window or chunk is given.
        sliding_window: as `least_depths`.
        chunk: as `least_depths`.

    Returns:
        shape (batch, 1, length, length), bool. O(length^2): for short windows, or without FlexAttention.

    Raises:
        ValueError: a window or chunk without depths, or one that cannot be.
    """
    rows = torch.arange(ends.shape[1], device=ends.device)
    query, key = rows[:, None], rows[None, :]
    mask = (key <= query) & (query < ends[:, None, :])
    near = _near(ends, depths, sliding_window, chunk)
    if near is not None:
        depths, least = near
        mask &= depths[:, None, :] >= least[:, :, None]
    return mask[:, None]


def tree_additive_mask(
    ends: Tensor,
    dtype: torch.dtype,
    *,
    depths: Tensor | None = None,
    sliding_window: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return the mask as numbers to add to scores: 0 where a query may use a key, else the lowest of ``dtype``.

    Args:
        ends: shape (batch, length), integer.
        dtype: floating point; that of the scores. "Eager" attention of many models takes nothing else.
        depths: shape (batch, length), integer; where a window or chunk is given.
        sliding_window: as `least_depths`.
        chunk: as `least_depths`.

    Returns:
        shape (batch, 1, length, length).

    Raises:
        ValueError: a window or chunk without depths, or one that cannot be.
    """
    mask = tree_bool_mask(ends, depths=depths, sliding_window=sliding_window, chunk=chunk)
    return torch.zeros(mask.shape, dtype=dtype, device=ends.device).masked_fill_(~mask, torch.finfo(dtype).min)
