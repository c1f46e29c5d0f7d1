"""CPU seconds and peak memory of alternatives run in turn, and tables of what came out."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["added_memory", "cpu_seconds", "in_turn", "print_table"]


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return user and system seconds of a call, all threads and finished children, and its result."""
    gc.collect()
    before = _used()
    result = function()
    return _used() - before, result


def _used() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def added_memory(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the most MB that a call held above what there was before, and its result; NaN where Linux cannot tell."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before, and is taken again, would count as nothing
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is resident now
        before = _resident("VmRSS")
    except OSError:
        return float("nan"), function()
    result = function()
    return _resident("VmHWM") - before, result


def _resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def in_turn(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, Any]]:
    """Return the median CPU seconds and the last result of every side; a noisy minute hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, function in sides.items():
            results.pop(name, None)  # its memory is free before the next one is measured
            spent, results[name] = cpu_seconds(function)
            seconds[name].append(spent)
    return {name: (statistics.median(seconds[name]), results[name]) for name in sides}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a title, the first column to the left, the others to the right."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    print(f"\n{title}")
    for row in (header, *rows):
        cells = [
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)
