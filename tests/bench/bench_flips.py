"""Print how many of 500 random bit flips in an output `dagpack verify` finds: ``python -m tests.bench flips``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Build a small output of two generations, flip bits in it one at a time, and print the figure."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest has it
    from commands import TINY, run
    from flips import flip_bits

    parser = argparse.ArgumentParser(prog="python -m tests.bench flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="dagpack-bench-") as folder:
        out = Path(folder, "out")
        for options in ((), ("--shard-format", "npy", "--val-fraction", "0.5")):
            ran = run("build", TINY / "chat", out, *options)
            assert ran.code == 0, ran.err
        started = time.perf_counter()
        found = flip_bits(out, given.flips, given.seed)
        seconds = time.perf_counter() - started
    print("\n".join(found.missed))
    print(
        f"flips: {found.tried - len(found.missed):,} of {found.tried:,} found and their files named, "
        f"in {found.files:,} files; {seconds / found.tried * 1000:.0f} ms each"
    )
