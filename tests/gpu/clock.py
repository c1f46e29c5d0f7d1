"""Time and memory on a device, and the time that is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bench.measure import added_memory

__all__ = ["Budget", "median_ms", "peak_megabytes", "wall_ms"]


class Budget:
    """Minutes that a run may take, from now on."""

    def __init__(self, minutes: float) -> None:
        self._started = time.perf_counter()
        self._seconds = 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    def allows(self, seconds: float) -> bool:
        """Tell whether something that takes about so many seconds would end in time."""
        return self.spent + seconds <= self._seconds


def median_ms(step: Callable[[], Any], device: torch.device, repeats: int, warmup: int) -> float:
    """Return the median milliseconds of a step on the device: between events on a GPU, of wall time on a CPU."""
    for _ in range(warmup):
        step()
    if device.type != "cuda":
        return statistics.median(_wall(step) for _ in range(repeats))
    event: Any = torch.cuda.Event
    spans = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize(device)
    for start, end in spans:
        start.record()
        step()
        end.record()
    torch.cuda.synchronize(device)
    return float(statistics.median(start.elapsed_time(end) for start, end in spans))


def wall_ms(step: Callable[[], Any], device: torch.device, repeats: int, warmup: int) -> float:
    """Return the median milliseconds of wall time of a step that is waited for."""

    def whole() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(warmup):
        whole()
    return statistics.median(_wall(whole) for _ in range(repeats))


def _wall(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return 1_000 * (time.perf_counter() - started)


def peak_megabytes(step: Callable[[], Any], device: torch.device) -> float:
    """Return the most MB (10^6 bytes) of tensors on a GPU during a step, what was there before included.

    On a CPU what the process held above what it held before, NaN where the system does not tell.
    """
    if device.type != "cuda":
        return added_memory(step)[0] * 2**20 / 1e6
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return float(torch.cuda.max_memory_allocated(device)) / 1e6
