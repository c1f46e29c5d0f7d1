"""Who owns a distinct row: checked over all windows of a partition in memory that does not grow with them.

Every row is written down as (which row it is, owned, trains) in one of many temporary files, chosen by
which row it is; each file then holds all occurrences of its rows, in the order of the windows.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
import numpy.typing as npt

from dagpack_cli.shards import WindowRows
from dagpack_cli.verify.keys import row_keys
from dagpack_cli.verify.report import fail

__all__ = ["OwnershipCheck"]

_BUCKET_ROWS = 1 << 21
_MOST_BUCKETS = 256
_RECORD = np.dtype([("key", "<u8"), ("flags", "u1")])


class OwnershipCheck:
    """Takes in the windows of a partition in order; then says whether each row is owned where it should be.

    Args:
        num_rows: about how many rows are to come: how many files there are follows.

    It is a context: the temporary files go with it. Disk 9 bytes a row.
    """

    def __init__(self, num_rows: int) -> None:
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

    def add(self, windows: WindowRows) -> None:
        """Take in the windows of a shard."""
        records = np.empty(len(windows.inputs), dtype=_RECORD)
        records["key"] = row_keys(windows, by_segment=True)
        records["flags"] = windows.owned + 2 * (windows.weights != 0).astype(np.uint8)
        buckets = records["key"] % np.uint64(len(self._files))
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(len(self._files)), side="right")
        for file, part in zip(self._files, np.split(records[order], ends[:-1]), strict=True):
            file.write(part.tobytes())

    def finish(self, where: Path, part: str, distinct_rows: int) -> None:
        """Check that every distinct row is owned once: where its weight is first not 0, else where it is first.

        Raises:
            DamageError: one is not, or there are not ``distinct_rows`` of them.
        """
        found, wrong = 0, False
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            distinct, right = _check(np.fromfile(path, dtype=_RECORD))
            path.unlink()
            found += distinct
            wrong |= not right
        if found != distinct_rows:
            fail(where, f"{part}: {found:,} distinct rows", f"{distinct_rows:,} as the manifest says")
        if wrong:
            fail(where, f"{part}: a row is not owned by exactly the window that should own it")


def _check(records: npt.NDArray[np.void]) -> tuple[int, bool]:
    """Return how many distinct rows there are, and whether each is owned where it should be."""
    if len(records) == 0:
        return 0, True
    order = np.argsort(records["key"], kind="stable")
    keys, flags = records["key"][order], records["flags"][order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    places, never = np.arange(len(order)), len(order)
    first_training = np.minimum.reduceat(np.where(flags & 2, places, never), starts)
    expected = np.zeros(len(order), dtype=bool)
    expected[np.where(first_training < never, first_training, starts)] = True
    return len(starts), bool(((flags & 1).astype(bool) == expected).all())
