"""Who owns a distinct row: checked over all windows of a partition in memory that does not grow with them.

Every row is written down as (which row it is, what it is here) in one of many temporary files, chosen by
which row it is; each file then holds all occurrences of its rows, in the order of the windows.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
import numpy.typing as npt

from dagpack_cli.shards import WindowRows
from dagpack_cli.verify.report import fail

__all__ = ["OwnershipCheck"]

_BUCKET_ROWS = 1 << 21
_MOST_BUCKETS = 256
_RECORD = np.dtype([("position", "<i8"), ("shard", "<u4"), ("flags", "u1")])
_OWNED, _TRAINS, _LAST = 1, 2, 4
_OWNER = "a row is not owned by exactly the window that should own it"
_PLACE = "an example belongs to a window that is not the first with its last row"


class OwnershipCheck:
    """Takes in the windows of a partition in order; then says whether each row is owned where it should be.

    Args:
        num_rows: about how many rows are to come: how many files there are follows.
        once: whether a row is trained once, in the first window that holds it.

    It is a context: the temporary files go with it. Disk 13 bytes a row.
    """

    def __init__(self, num_rows: int, *, once: bool) -> None:
        self._once = once
        self._shards: list[Path] = []
        self._folder = TemporaryDirectory(prefix="dagpack-verify-")
        num = min(max(-(-num_rows // _BUCKET_ROWS), 1), _MOST_BUCKETS)
        self._paths = [Path(self._folder.name, str(number)) for number in range(num)]
        self._files: list[IO[bytes]] = [path.open("wb") for path in self._paths]

    def __enter__(self) -> OwnershipCheck:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        for file in self._files:
            file.close()
        self._folder.cleanup()

    def add(
        self, shard: Path, windows: WindowRows, positions: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
    ) -> None:
        """Take in the windows of a shard.

        Args:
            shard: its path.
            windows: of the shard.
            positions: shape (num_rows,), int64; which distinct row each is.
            lasts: shape (n,), int64; rows that are the last of a piece that belongs to their window.
        """
        records = np.empty(len(windows.inputs), dtype=_RECORD)
        records["position"], records["shard"] = positions, len(self._shards)
        self._shards.append(shard)
        records["flags"] = _OWNED * windows.owned + _TRAINS * (windows.weights != 0).astype(np.uint8)
        records["flags"][lasts] |= _LAST
        buckets = positions % len(self._files)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(len(self._files)), side="right")
        for file, part in zip(self._files, np.split(records[order], ends[:-1]), strict=True):
            file.write(part.tobytes())

    def finish(self, where: Path, part: str, distinct_rows: int) -> None:
        """Check that every distinct row is owned once: where its weight is first not 0, else where it is first.

        Where rows are trained once, that is where it is first. And pieces belong to the first window that has
        their last row.

        Raises:
            DamageError: it is not so, or there are not ``distinct_rows`` rows.
        """
        found = 0
        wrong: dict[str, Path] = {}
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            records = np.fromfile(path, dtype=_RECORD)
            path.unlink()
            records = records[np.argsort(records["position"], kind="stable")]
            flags, is_first = records["flags"], np.diff(records["position"], prepend=-1) != 0
            found += int(np.count_nonzero(is_first))
            for what, bad in (
                ("a row is not owned by exactly the window that should own it", self._not_owned(is_first, flags)),
                (
                    "an example belongs to a window that is not the first with its last row",
                    ~is_first & (flags & _LAST > 0),
                ),
            ):
                if bad.any():
                    wrong.setdefault(what, self._shards[int(records["shard"][int(np.argmax(bad))])])
        for what, shard in wrong.items():
            fail(shard, f"{part}: {what}")
        if found != distinct_rows:
            fail(where, f"{part}: {found:,} distinct rows", f"{distinct_rows:,} as the manifest says")

    def _not_owned(self, is_first: npt.NDArray[np.bool_], flags: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return where owned is not what it should be, in occurrences of rows, one row after the other."""
        return np.asarray((flags & _OWNED > 0) != self._owners(is_first, flags))

    def _owners(self, is_first: npt.NDArray[np.bool_], flags: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return which of the occurrences of rows, one row after the other, owns its row."""
        if self._once or not len(flags):
            return is_first
        starts = np.flatnonzero(is_first)
        never = len(flags)
        training = np.minimum.reduceat(np.where(flags & _TRAINS, np.arange(never), never), starts)
        owners = np.zeros(len(flags), dtype=bool)
        owners[np.where(training < never, training, starts)] = True
        return owners
