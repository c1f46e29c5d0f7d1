"""Build corpora of several times the memory that a process is given: ``python -m tests.bench memory``.

The operating system limits what the process may allocate (RLIMIT_DATA; mapped files are not counted:
their pages go when somebody else needs them), and the bytes are compared with those of a build without limits.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import families
from .measure import print_table

_FILE_TOKENS = 20_000_000


def main(arguments: Sequence[str]) -> None:
    """Generate, build twice, compare, and print peaks."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench memory", description=__doc__)
    parser.add_argument("--tokens", type=int, default=400_000_000, help="of each corpus")
    parser.add_argument("--memory", default="512M", help="given to --memory")
    parser.add_argument("--limit", type=int, default=1 << 30, help="bytes that the process may allocate in all")
    parser.add_argument("--families", default="web,agent,chat", help="of families.py")
    parser.add_argument("--folder", type=Path, default=None, help="where there is room")
    given = parser.parse_args(arguments)
    rows = []
    for name in given.families.split(","):
        with TemporaryDirectory(prefix="dagpack-memory-", dir=given.folder) as folder:
            root = Path(folder)
            # The first build on a machine compiles, which takes memory of its own.
            _generate(name, 3 * _FILE_TOKENS // 2, root / "small")
            _build(root / "small", root / "compiled", [], None)
            num, examples = _generate(name, given.tokens, root / "corpus")
            limited = _build(root / "corpus", root / "limited", ["--memory", given.memory], given.limit)
            free = _build(root / "corpus", root / "free", [], None)
            same = _same(root / "limited", root / "free")
            rows.append(
                (
                    name,
                    f"{examples:,}",
                    f"{num / 1e6:.0f} M",
                    f"{4 * num / 2**20:,.0f}",
                    f"{given.limit / 2**20:,.0f}",
                    f"{limited[0]:,.0f}",
                    f"{free[0]:,.0f}",
                    f"{limited[1]:.0f}",
                    f"{free[1]:.0f}",
                    same,
                )
            )
    print_table(
        f"corpora beyond memory (--memory {given.memory}; MB and CPU seconds; ids as Parquet, 8,192 rows a window)",
        (
            "family",
            "examples",
            "tokens",
            "tokens MB",
            "limit",
            "peak limited",
            "peak free",
            "CPU limited",
            "CPU free",
            "same bytes",
        ),
        rows,
    )


def _generate(name: str, num_tokens: int, folder: Path) -> tuple[int, int]:
    """Write a corpus as Parquet files of 20 million ids; return its tokens and examples."""
    folder.mkdir()
    rng = np.random.default_rng(9)
    found = examples = files = 0
    while found < num_tokens:
        corpus = families.STRUCTURE[name](rng, min(_FILE_TOKENS, num_tokens - found))
        column = pa.LargeListArray.from_arrays(pa.array(corpus.offsets), pa.array(corpus.tokens))
        table = pa.table({"input_ids": column})
        pq.write_table(table, folder / f"part-{files:04d}.parquet", compression="zstd", row_group_size=1 << 14)
        found += len(corpus.tokens)
        examples += corpus.num_sequences
        files += 1
    return found, examples


def _build(corpus: Path, out: Path, options: Sequence[str], limit: int | None) -> tuple[float, float]:
    """Build and return the peak of what the process allocated, in MiB, and its CPU seconds."""
    words = [
        sys.executable,
        "-m",
        "dagpack_cli",
        "build",
        str(corpus),
        str(out),
        "--on-long",
        "split",
        "--quiet",
        *options,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    def restrict() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    # Arrow's own allocator reserves a GiB of addresses, which the limit would count.
    process = subprocess.Popen(words, preexec_fn=restrict, env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"})
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_memory(process.pid))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"{' '.join(words)}: exit {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return peak / 1024, seconds


def anonymous_memory(pid: int) -> int:
    """Return the kB of memory that a process has written and no file holds."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def _same(left: Path, right: Path) -> str:
    """Tell whether the generations of two outputs have the same bytes, run.json apart."""
    one, other = (next((out / "generations").iterdir()) for out in (left, right))
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()} - {Path("run.json")}
    if names != {path.relative_to(other) for path in other.rglob("*") if path.is_file()} - {Path("run.json")}:
        return "NO"
    return "yes" if all(filecmp.cmp(one / name, other / name, shallow=False) for name in names) else "NO"
