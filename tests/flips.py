"""Random bit flips over all files of an output, each looked for by `dagpack verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from commands import run

__all__ = ["Flips", "flip_bits"]

_NO_DATA = {"LOCK", "cache", ".staging"}


@dataclass(frozen=True)
class Flips:
    """How many bits were flipped in how many files, and where a flip was not found or its file not named."""

    tried: int
    files: int
    missed: list[str]


def flip_bits(out: Path, num: int, seed: int = 0) -> Flips:
    """Flip one bit of an output at a time and verify it; the output is as before when this returns.

    Files take turns, so that a small one is tried as often as a large one.
    """
    files = [
        path
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.relative_to(out).parts[0] not in _NO_DATA and path.stat().st_size
    ]
    generator = np.random.default_rng(seed)
    missed = []
    for number in range(num):
        path = files[number % len(files)]
        data = path.read_bytes()
        at, bit = int(generator.integers(len(data))), int(generator.integers(8))
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        path.write_bytes(bytes(damaged))
        ran = run("verify", out)
        path.write_bytes(data)
        # A pointer that leads nowhere is told as what it leads to.
        named = str(path) in ran.out + ran.err or (path.name == "CURRENT" and ran.code)
        if ran.code not in (76, 78) or not named:
            missed.append(f"{path.relative_to(out)}: byte {at:,}, bit {bit}: exit {ran.code}")
    return Flips(num, len(files), missed)
