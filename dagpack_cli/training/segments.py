"""Exact attention over a tree without all pairs: blocks of rows, each with its own ancestors as keys. For CPUs.

The rows from ``a`` up to ``b`` see, outside of themselves, exactly ancestors of row ``a``: a row before ``a``
that any of them descends from has ``a`` in its subtree too, for a subtree has no gap. So any cut of a
window into blocks is exact when each block attends, through SDPA, to the gathered ancestors of its first
row and to itself under a small mask. SDPA with a mask of the whole window, which skips nothing, is the cut
into one block; the cut that is taken costs least by a model of what SDPA takes (`_COSTS`), so it is never
worse than that one by much.

FlexAttention does not train on a CPU, and SDPA with a mask computes every pair of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention

from dagpack_cli.training.masks import least_depths

__all__ = ["interval_mask", "is_interval_mask", "segment_attention"]

Ints = npt.NDArray[np.int64]

# Nanoseconds, forward and backward, of one thread; measured by `tests.bench attention`. Only ratios matter.
_CALL = 250_000.0
_PAIR_PER_HEAD, _PAIR_PER_NUMBER = 4.5, 0.18
_ROWS_PER_KEY = 16  # a key costs as much as this many rows that attend to it: gathered, and its gradient added
_CAUSAL_ROWS = 150  # where SDPA knows that a block is causal it computes half the pairs, and so many keys a row
_CUT = 64  # a long run of rows may be cut at multiples of this
_NARROW = 8  # no block starts fewer rows after another could
_COPIED = 32  # so many rows in a row that see only themselves are copied, not attended to


def interval_mask(
    ends: Tensor, *, depths: Tensor | None = None, sliding_window: int | None = None, chunk: int | None = None
) -> Tensor:
    """Return what `segment_attention` needs to know of a batch, in a shape that passes for an attention mask.

    Args:
        ends: shape (batch, length), int32.
        depths: shape (batch, length), integer; where a window or chunk is given.
        sliding_window: as `dagpack_cli.training.masks.least_depths`.
        chunk: likewise.

    Returns:
        int32: (batch, 1, 1, length), the ends; or (batch, 1, 3, length), the ends, depths and least depths
        that rows see.

    Raises:
        ValueError: a window or chunk without depths, or one that cannot be.
    """
    parts = [ends]
    if sliding_window is not None or chunk is not None:
        if depths is None or depths.shape != ends.shape:
            raise ValueError("a sliding window and a chunk count depths, of the shape of ends")
        least = least_depths(depths, sliding_window=sliding_window, chunk=chunk)
        parts += [depths.to(torch.int32), least]
    return torch.stack(parts, dim=1)[:, None].to(torch.int32)


def is_interval_mask(mask: Any) -> bool:
    """Tell whether a mask is one of `interval_mask`: no other kind of mask is int32."""
    return isinstance(mask, Tensor) and mask.dtype == torch.int32 and mask.ndim == 4 and mask.shape[2] in (1, 3)


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, intervals: Tensor, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """Return attention over a batch of windows, of a row to itself and its ancestors.

    Args:
        query: shape (batch, heads, length, width), floating point.
        key: shape (batch, key heads, length, width); key heads divide heads.
        value: shape (batch, key heads, length, value width).
        intervals: of `interval_mask`.
        scale: of the scores; 1 / sqrt(width) by default.
        dropout: probability that a weight of the softmax is dropped.

    Returns:
        shape (batch, length, heads, value width): rows before heads, as the next projection takes it.

    Raises:
        ValueError: intervals of another batch or length.

    Differentiable. Memory: keys and values of every block, no tensor of all pairs.
    """
    batch, heads, length, width = query.shape
    if intervals.shape[0] != batch or intervals.shape[-1] != length or key.shape[2] != length:
        raise ValueError(f"intervals {tuple(intervals.shape)} for queries {tuple(query.shape)}")
    plan = _plan_of(intervals, heads, width)
    queries = torch.split(query.transpose(1, 2).reshape(batch * length, heads, width), plan.rows)
    keys, values = (_gathered(rows, plan, batch * length) for rows in (key, value))
    grouped = key.shape[1] != heads
    pieces = []
    for block, q, k, v in zip(plan.blocks, queries, keys, values, strict=True):
        if block.copied:
            own = v.repeat_interleave(heads // v.shape[1], dim=1) if grouped else v
            pieces.append(own * drop(torch.ones_like(own[..., :1]), dropout) if dropout else own)
            continue
        q, k, v = (rows.transpose(0, 1)[None] for rows in (q, k, v))
        mask = block.full_mask(k.shape[2], query.device)
        mixed = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=block.causal, scale=scale, enable_gqa=grouped
        )
        pieces.append(mixed[0].transpose(0, 1))
    return torch.cat(pieces).view(batch, length, heads, value.shape[-1])


def _gathered(rows: Tensor, plan: _Plan, num_rows: int) -> tuple[Tensor, ...]:
    """Return the keys, or values, of every block: (keys of it, heads, width)."""
    flat = rows.transpose(1, 2).reshape(num_rows, rows.shape[1], rows.shape[3])
    if plan.gathers:
        flat = flat.index_select(0, plan.keys.to(rows.device))
    return torch.split(flat, plan.num_keys)


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows that attend in one call.

    Attributes:
        mask: shape (rows, last keys), bool: what rows see of the last keys; they see all keys before. None
            where there is nothing to mask.
        causal: whether it is a chain that sees nothing before it.
        copied: whether its rows see only themselves.
    """

    mask: Tensor | None = None
    causal: bool = False
    copied: bool = False

    def full_mask(self, num_keys: int, device: torch.device) -> Tensor | None:
        """Return the mask over all keys of the block."""
        if self.mask is None:
            return None
        return pad(self.mask.to(device), (num_keys - self.mask.shape[1], 0), value=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The blocks of a batch whose windows stand one after another.

    Attributes:
        blocks: in the order of rows.
        rows: of each block.
        num_keys: of each block.
        keys: shape (sum of ``num_keys``,), int64: the row of each key.
        gathers: whether keys are not simply all rows in their order.
    """

    blocks: list[_Block]
    rows: list[int]
    num_keys: list[int]
    keys: Tensor
    gathers: bool


def _plan_of(intervals: Tensor, heads: int, width: int) -> _Plan:
    """Return the plan of a batch; made once for all layers, and for recomputation in backward."""
    values = intervals.detach().cpu().contiguous().numpy()
    return _cached_plan(values.tobytes(), (values.shape[0], values.shape[2], values.shape[3]), heads, width)


@lru_cache(maxsize=8)
def _cached_plan(values: bytes, shape: tuple[int, int, int], heads: int, width: int) -> _Plan:
    windows = np.frombuffer(values, dtype=np.int32).reshape(shape).astype(np.int64)
    call = _CALL / (heads * (_PAIR_PER_HEAD + _PAIR_PER_NUMBER * width))
    blocks: list[_Block] = []
    rows: list[int] = []
    keys: list[Ints] = []
    for number, window in enumerate(windows):
        tree = _Tree.of(window)
        cuts = list(tree.cuts(call))
        if number == 0 and cuts[0] == (0, shape[2], True):
            # A batch of nothing but padding still attends once, or queries had no gradient, which several GPUs' or
            # processes' averaging would wait for.
            cuts = [(0, 1, False), (1, shape[2], True)][: shape[2]]
        for start, stop, copied in cuts:
            seen = np.arange(start, stop) if copied else tree.keys(start, stop)
            blocks.append(_Block(copied=True) if copied else tree.block(start, stop, seen))
            rows.append(stop - start)
            keys.append(seen + number * shape[2])
    gathered = np.concatenate(keys)
    return _Plan(
        blocks=blocks,
        rows=rows,
        num_keys=[len(seen) for seen in keys],
        keys=torch.from_numpy(gathered),
        gathers=not np.array_equal(gathered, np.arange(shape[0] * shape[2])),
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """One window: every array has shape (length,), int64.

    Attributes:
        ends: exclusive ends of subtrees.
        ancestors: how many a row has.
        depths, least: None where rows see all their ancestors.
    """

    ends: Ints
    ancestors: Ints
    depths: Ints | None
    least: Ints | None

    @classmethod
    def of(cls, window: Ints) -> _Tree:
        """Return the tree of a window of `interval_mask`, (1 or 3, length)."""
        ends = window[0]
        length = len(ends)
        closed = np.cumsum(np.bincount(ends, minlength=length + 1))[:length]
        near = (window[1], window[2]) if len(window) > 1 else (None, None)
        return cls(ends, np.arange(length) - closed, *near)

    def keys(self, start: int, stop: int) -> Ints:
        """Return the rows that rows from ``start`` up to ``stop`` see, and themselves."""
        above = np.flatnonzero(self.ends[:start] > start)
        if self.depths is not None and self.least is not None:
            above = above[self.depths[above] >= self.least[start:stop].min()]
        return np.concatenate((above, np.arange(start, stop)))

    def block(self, start: int, stop: int, keys: Ints) -> _Block:
        """Return the block of these rows, with the mask that it needs."""
        # Ancestors are nested: those that all rows descend from come first, and without a window nothing hides them.
        shared = (
            int(np.searchsorted(-self.ends[keys[: start - stop]], -stop, side="right")) if self.least is None else 0
        )
        masked = keys[shared:]
        queries = np.arange(start, stop)[:, None]
        mask = (masked <= queries) & (queries < self.ends[masked])
        if self.depths is not None and self.least is not None:
            mask &= self.depths[masked] >= self.least[start:stop, None]
        if mask.all():
            return _Block()
        if len(keys) == stop - start and np.array_equal(mask, np.tri(len(keys), dtype=bool)):
            return _Block(causal=True)
        return _Block(mask=torch.from_numpy(mask))

    def cuts(self, call: float) -> Iterator[tuple[int, int, bool]]:
        """Yield the blocks to take: (first row, row after the last, whether rows are only copied)."""
        length = len(self.ends)
        alone = (self.ancestors == 0) & (self.ends == np.arange(1, length + 1))
        edges = np.concatenate(([0], np.flatnonzero(alone[1:] != alone[:-1]) + 1, [length])).tolist()
        done = 0
        for start, stop in pairwise(edges):
            if alone[start] and (stop - start >= _COPIED or stop == length):
                yield from self._cheapest(done, start, call)
                yield start, stop, True
                done = stop
        yield from self._cheapest(done, length, call)

    def _cheapest(self, first: int, last: int, call: float) -> list[tuple[int, int, bool]]:
        """Return the cut of rows from ``first`` up to ``last`` that costs least: a shortest path over places to cut."""
        if first == last:
            return []
        chained = np.concatenate(
            ([False], self.ends[:-1] > np.arange(1, len(self.ends)))
        )  # goes on from the row before
        places, run_ends = _places(chained, first, last)
        shallowest = None if self.least is None else np.minimum.reduceat(self.least, places[:-1])
        best = np.full(len(places), np.inf)
        best[0], origin = 0.0, np.zeros(len(places), dtype=np.int64)
        for number, place in enumerate(places[:-1].tolist()):
            rows = places[number + 1 :] - place
            above = np.broadcast_to(self.ancestors[place], rows.shape)
            if shallowest is not None and self.depths is not None:
                reach = self.depths[place] - np.minimum.accumulate(shallowest[number:])
                above = np.clip(reach, 0, above)
            pairs = rows * (above + rows)
            if self.least is None and self.ancestors[place] == 0:
                causal = np.minimum(pairs, rows * rows // 2 + _CAUSAL_ROWS * rows)
                pairs = np.where(places[number + 1 :] <= run_ends[number], causal, pairs)
            costs = best[number] + call + pairs + _ROWS_PER_KEY * (above + rows)
            better = np.flatnonzero(costs < best[number + 1 :])
            best[number + 1 + better], origin[number + 1 + better] = costs[better], number
        cuts = []
        at = len(places) - 1
        while at > 0:
            cuts.append((int(places[origin[at]]), int(places[at]), False))
            at = int(origin[at])
        return cuts[::-1]


def _places(chained: npt.NDArray[np.bool_], first: int, last: int) -> tuple[Ints, Ints]:
    """Return where rows may be cut, both ends included, and up to where each place's run goes on unbranched."""
    runs = np.append(first + np.flatnonzero(~chained[first:last]), last)
    if runs[0] != first:
        runs = np.concatenate(([first], runs))
    candidates = np.union1d(runs, np.arange(first, last, _CUT))
    kept, before = [], -_NARROW
    for place in candidates.tolist():
        if place - before >= _NARROW or place == last:
            kept.append(place)
            before = place
    places = np.array(kept)
    return places, runs[np.searchsorted(runs, places[:-1], side="right")]
