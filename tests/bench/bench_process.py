"""Whole processes on the same sequences, imports and all: ``python -m tests.bench process``.

``dagpack build`` of a corpus of ids in Parquet, and a process that reads the same files, packs them with TRL's best fit
and writes its result: CPU seconds of both, the peak of what they held in memory that no file holds, and what came out.
"""

from __future__ import annotations

import argparse
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

from dagpack_cli.manifest import Manifest
from dagpack_cli.storage import open_current

from . import families
from .bench_memory import anonymous_memory
from .measure import print_table
from .peers import has_trl

_FILE_SEQUENCES = 100_000
_TRL = """
import sys
from pathlib import Path
import datasets, pyarrow as pa, pyarrow.compute, pyarrow.parquet as pq
from trl import pack_dataset
corpus, target, seq_len, cache = sys.argv[1:]
datasets.disable_progress_bars()
files = sorted(str(path) for path in Path(corpus).glob("*.parquet"))
rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
packed = pack_dataset(rows, int(seq_len), strategy="bfd")
table = packed.data.table
pq.write_table(table, target, compression="zstd")
rows = pa.compute.sum(pa.compute.list_value_length(table["input_ids"])).as_py()
print(len(packed), rows / (len(packed) * int(seq_len)))
"""


def main(arguments: Sequence[str]) -> None:
    """Generate, run both, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench process", description=__doc__)
    parser.add_argument("--sequences", type=int, default=1_000_000, help="of each corpus")
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--families", default="web,chat", help="of families.py")
    parser.add_argument("--folder", type=Path, default=None, help="where there is room")
    given = parser.parse_args(arguments)
    rows = []
    for name in given.families.split(","):
        with TemporaryDirectory(prefix="dagpack-process-", dir=given.folder) as folder:
            root = Path(folder)
            tokens, sequences = _generate(name, given.sequences, root / "corpus")
            ours = _ours(root, given.seq_len)
            rows.append((name, f"{sequences:,}", f"{tokens / 1e6:,.0f} M", "dagpack build", *ours))
            if has_trl():
                peer = _peer(root, given.seq_len)
                rows.append(("", "", "", "TRL bfd, read and write", *peer))
    print_table(
        f"whole processes, {given.seq_len:,} rows a window (CPU seconds, MB; eight columns of ours beside TRL's own)",
        ("family", "sequences", "tokens", "process", "CPU", "wall", "peak", "windows", "fill", "bytes written"),
        rows,
    )


def _generate(name: str, num_sequences: int, folder: Path) -> tuple[int, int]:
    """Write a corpus as Parquet files of 100,000 sequences; return its tokens and sequences."""
    folder.mkdir()
    rng = np.random.default_rng(11)
    tokens = sequences = files = 0
    sample = families.STRUCTURE[name](np.random.default_rng(1), 1_000_000)
    per_sequence = len(sample.tokens) / sample.num_sequences
    while sequences < num_sequences:
        wanted = min(_FILE_SEQUENCES, num_sequences - sequences)
        corpus = families.STRUCTURE[name](rng, int(wanted * per_sequence))
        column = pa.LargeListArray.from_arrays(pa.array(corpus.offsets), pa.array(corpus.tokens))
        path = folder / f"part-{files:04d}.parquet"
        pq.write_table(pa.table({"input_ids": column}), path, compression="zstd", row_group_size=1 << 14)
        tokens, sequences, files = tokens + len(corpus.tokens), sequences + corpus.num_sequences, files + 1
    return tokens, sequences


def _ours(root: Path, seq_len: int) -> tuple[str, ...]:
    words = [sys.executable, "-m", "dagpack_cli", "build", str(root / "corpus"), str(root / "out"), "--quiet"]
    words += ["--on-long", "split", "--seq-len", str(seq_len)]
    cpu, wall, peak, _ = _measured(words)
    with open_current(root / "out") as generation:
        manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path)
        packing = manifest.packing["train"]
        written = sum(entry.size for entry in manifest.files if entry.path.startswith("shards/"))
    fill = packing["rows"] / (packing["windows"] * seq_len)
    return cpu, wall, peak, f"{packing['windows']:,}", f"{fill:.4f}", f"{written / 2**20:,.0f} M"


def _peer(root: Path, seq_len: int) -> tuple[str, ...]:
    target = root / "packed.parquet"
    words = [sys.executable, "-c", _TRL, str(root / "corpus"), str(target), str(seq_len), str(root / "cache")]
    cpu, wall, peak, printed = _measured(words)
    windows, fill = printed.split()[-2:]
    return cpu, wall, peak, f"{int(windows):,}", f"{float(fill):.4f}", f"{target.stat().st_size / 2**20:,.0f} M"


def _measured(words: Sequence[str]) -> tuple[str, str, str, str]:
    """Run a process; return its CPU and wall seconds, the peak of its anonymous memory in MB, and what it printed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_memory(process.pid))
        time.sleep(0.05)
    assert process.stdout is not None
    printed = process.stdout.read()
    if process.returncode:
        sys.exit(f"{words[:4]}: exit {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{cpu:.1f}", f"{time.perf_counter() - started:.1f}", f"{peak / 1024:,.0f}", printed
