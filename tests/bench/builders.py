"""Block masks: built from the intervals, and by FlexAttention from all pairs; each in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
import warnings
from itertools import pairwise
from multiprocessing.connection import Connection

import numpy as np

__all__ = ["measure_builders"]


def agent_ends(length: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the subtree ends of a window with a trunk of half its rows and fourteen nested branches."""
    ends = np.full(length, length, dtype=np.int32)
    starts = np.linspace(length // 2, length, 15).astype(int)
    for low, high in pairwise(starts.tolist()):
        ends[low:high] = high
    return ends


def _measure(kind: str, length: int, repeats: int, reply: Connection) -> None:
    """Send the median wall milliseconds and the added peak memory in MB of one builder."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    from dagpack_cli.training import tree_block_mask, tree_mask_mod

    warnings.simplefilter("ignore")
    ends = torch.from_numpy(agent_ends(length))[None]
    small = torch.from_numpy(agent_ends(256))[None]

    def build(these: torch.Tensor) -> object:
        if kind == "direct":
            return tree_block_mask(these)
        return create_block_mask(tree_mask_mod(these), 1, None, these.shape[1], these.shape[1], device="cpu")

    build(small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        build(ends)
        seconds.append(time.perf_counter() - started)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    reply.send((1000 * statistics.median(seconds), added))


def measure_builders(lengths: tuple[int, ...], repeats: int) -> list[tuple[str, ...]]:
    """Return a row a length: milliseconds and MB of both builders, and how many times faster ours is."""
    context = multiprocessing.get_context("spawn")
    rows: list[tuple[str, ...]] = []
    for length in lengths:
        found = {}
        for kind in ("direct", "all pairs"):
            ours, theirs = context.Pipe()
            process = context.Process(target=_measure, args=(kind, length, repeats if length < 30_000 else 1, theirs))
            process.start()
            theirs.close()
            found[kind] = ours.recv()
            process.join()
        (quick, small), (slow, large) = found["direct"], found["all pairs"]
        rows.append(
            (f"{length:,}", f"{quick:.2f}", f"{slow:,.0f}", f"{slow / quick:,.0f}x", f"{small:.1f}", f"{large:,.0f}")
        )
    return rows
