"""Which windows stand in which file, and writing the files of a partition side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from dagpack_cli.shards.window import WindowRows

__all__ = ["ShardFormat", "ShardReport", "read_shard", "windows_per_file", "write_shards"]

ShardFormat = Literal["parquet", "npy"]
_FILE_ROWS = 1 << 21  # of 29 bytes: about 64 MB before compression


class _Windows(Protocol):
    num_windows: int

    def batch(self, first: int, last: int) -> WindowRows: ...


@dataclass(slots=True)
class ShardReport:
    """What was written for one partition: totals over its windows."""

    num_windows: int = 0
    num_rows: int = 0
    num_supervised: int = 0
    weight_sum: float = 0.0
    attention_edges: int = 0
    blocks: int = 0
    counts: int = 0
    owned: int = 0

    def add(self, windows: WindowRows) -> None:
        """Add the windows of one file."""
        self.num_windows += windows.num_windows
        self.num_rows += len(windows.inputs)
        self.num_supervised += int(windows.num_supervised.sum())
        self.weight_sum += float(windows.weight_sum.sum())
        self.attention_edges += int(windows.attention_edges.sum())
        self.blocks += int(windows.blocks.sum())
        self.counts += int(windows.counts.sum(dtype="int64"))
        self.owned += int(windows.owned.sum())


def windows_per_file(window_len: int) -> int:
    """Return the fixed number of windows of a shard: a function of ``window_len`` alone."""
    return max(1, _FILE_ROWS // window_len)


def write_shards(
    directory: Path,
    partition: str,
    windows: _Windows,
    *,
    shard_format: ShardFormat,
    window_len: int,
    metadata: Mapping[str, str],
    compression_level: int,
    workers: int,
    progress: Callable[[int], None],
) -> ShardReport:
    """Write all windows of a partition as ``<partition>-00000`` and on; return their totals.

    Files are filled in order and encoded by up to ``workers`` threads; at most ``workers`` + 1
    files are in memory. The bytes do not depend on ``workers``. ``progress`` hears how many windows more
    have been written, file after file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report = ShardReport()
    step = windows_per_file(window_len)
    pending: list[tuple[Future[None], int]] = []

    def finish_first() -> None:
        future, num_windows = pending.pop(0)
        future.result()
        progress(num_windows)

    with ThreadPoolExecutor(max_workers=workers) as pool:
        for number, first in enumerate(range(0, windows.num_windows, step)):
            rows = windows.batch(first, min(first + step, windows.num_windows))
            report.add(rows)
            name = f"{partition}-{number:05d}"
            while len(pending) >= workers:
                finish_first()
            future = pool.submit(_write, directory, name, rows, shard_format, window_len, metadata, compression_level)
            pending.append((future, rows.num_windows))
        while pending:
            finish_first()
    return report


def _write(
    directory: Path,
    name: str,
    rows: WindowRows,
    shard_format: ShardFormat,
    window_len: int,
    metadata: Mapping[str, str],
    compression_level: int,
) -> None:
    if shard_format == "parquet":
        from dagpack_cli.shards.parquet import write_parquet

        write_parquet(directory / f"{name}.parquet", rows, window_len, metadata, compression_level)
    else:
        from dagpack_cli.shards.npy import write_npy

        write_npy(directory / name, rows, window_len)


def read_shard(path: Path) -> WindowRows:
    """Return the windows of one shard of either format.

    Raises:
        DamageError: the shard is not what dagpack wrote.
    """
    if path.is_dir():
        from dagpack_cli.shards.npy import read_npy

        return read_npy(path)
    from dagpack_cli.shards.parquet import read_parquet

    return read_parquet(path)
