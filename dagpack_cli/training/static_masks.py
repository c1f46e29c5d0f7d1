"""A block mask whose tensors stay where they are while windows change, for CUDA graphs.

A captured CUDA graph reads the addresses that it saw when it was captured, so every step's mask must be the
same tensors with other numbers in them: the block lists, and what the ``mask_mod`` captures.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dagpack_cli.training.masks import least_depths, near_mask_mod, tree_block_mask, tree_mask_mod

__all__ = ["StaticBlockMask"]

_LISTS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


class StaticBlockMask:
    """The block mask of one batch after another, in buffers made once.

    ::

        static = StaticBlockMask(batch_size, length, "cuda")
        for batch in loader:  # every batch of that shape
            logits = model(batch["input_ids"], batch["position_ids"], static.update(batch["subtree_ends"]))

    Before the first `update` every row sees itself alone.

    Args:
        batch: windows of every batch.
        length: rows of every window; on a GPU a multiple of the block size, as FlexAttention's backward wants.
        device: where attention runs.
        block_size: rows of a block, at least 2.
        sliding_window: as `dagpack_cli.training.masks.least_depths`; `update` then wants depths.
        chunk: likewise.

    Raises:
        ValueError: a size below 1, a block size below 2, or both a sliding window and a chunk.

    Memory: 4 bytes x batch x (4 x blocks^2 + up to 3 x length).
    """

    def __init__(
        self,
        batch: int,
        length: int,
        device: torch.device | str = "cpu",
        *,
        block_size: int = 128,
        sliding_window: int | None = None,
        chunk: int | None = None,
    ) -> None:
        if batch < 1 or length < 1:
            raise ValueError(f"batch {batch}, length {length}: 1 up")
        self._near = sliding_window is not None or chunk is not None
        self._block_size, self._sliding_window, self._chunk = block_size, sliding_window, chunk
        self._ends = torch.arange(1, length + 1, dtype=torch.int32, device=device).repeat(batch, 1)
        self._depths, self._least = (torch.zeros_like(self._ends) for _ in range(2))
        fresh = self._fresh(self._ends, self._depths)
        mask_mod = tree_mask_mod(self._ends)
        if self._near:
            mask_mod = near_mask_mod(self._ends, self._depths, self._least)
        self._mask = BlockMask(
            (length, length),
            **{name: getattr(fresh, name) for name in _LISTS},
            BLOCK_SIZE=(block_size, block_size),
            mask_mod=mask_mod,
        )

    @property
    def mask(self) -> BlockMask:
        """The mask of the last batch: always the same object, of the same tensors."""
        return self._mask

    def update(self, ends: Tensor, depths: Tensor | None = None) -> BlockMask:
        """Return the mask of another batch, written over the one before.

        Call it outside of the captured graph, when the batch before has gone through its backward pass, which
        reads the same buffers; on the stream that computes, nothing waits.

        Args:
            ends: shape (batch, length), int32; on the mask's device, or in pinned memory, which is copied without
                waiting.
            depths: shape (batch, length), integer; where there is a sliding window or a chunk.

        Raises:
            ValueError: another shape or dtype, or no depths where they are needed.

        Time as `dagpack_cli.training.masks.tree_block_mask`, which makes the new lists, and a copy of them.
        """
        if ends.shape != self._ends.shape or ends.dtype != torch.int32:
            raise ValueError(f"ends {tuple(ends.shape)} {ends.dtype}: {tuple(self._ends.shape)} torch.int32")
        if self._near and (depths is None or depths.shape != ends.shape):
            raise ValueError(f"depths of shape {tuple(ends.shape)}: a sliding window and a chunk count them")
        self._ends.copy_(ends, non_blocking=True)
        if self._near and depths is not None:
            self._depths.copy_(depths, non_blocking=True)
            self._least.copy_(least_depths(self._depths, sliding_window=self._sliding_window, chunk=self._chunk))
        fresh = self._fresh(self._ends, self._depths)
        for name in _LISTS:
            getattr(self._mask, name).copy_(getattr(fresh, name))
        return self._mask

    def _fresh(self, ends: Tensor, depths: Tensor) -> BlockMask:
        return tree_block_mask(
            ends, self._block_size, depths=depths, sliding_window=self._sliding_window, chunk=self._chunk
        )
