"""Memory is a number that people write, and what is too large for it lies in files without names."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from dagpack_cli import memory
from dagpack_cli.errors import UsageError
from dagpack_cli.memory import Scratch, default_memory, parse_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [("64M", 64 << 20), ("64MiB", 64 << 20), ("1g", 1 << 30), ("2.5 GB", 5 << 29), ("134217728", 1 << 27)],
)
def test_sizes(text: str, size: int) -> None:
    """Units are powers of 1,024, in either case, with or without a B."""
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "much", "63M", "-1G", "1X", "1e9", "٣G", "nan"])
def test_what_is_no_size(text: str) -> None:
    """Anything else names the option and shows a size."""
    with pytest.raises(UsageError, match="at least 64M, such as 512M or 4G"):
        parse_memory(text)


def test_a_container_has_less_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the smaller of both; a limit of "max" is none."""
    (tmp_path / "none").write_text("max\n")
    (tmp_path / "some").write_text(f"{1 << 30}\n")
    monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "none"), str(tmp_path / "absent")))
    machine = default_memory()
    monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "none"), str(tmp_path / "some")))
    assert default_memory() == min(machine, 1 << 29)


def test_large_arrays_lie_in_files(tmp_path: Path) -> None:
    """Beyond the limit an array is a map of a file that nobody sees; both kinds are all 0 and can be written."""
    scratch = Scratch(tmp_path, 100)
    small, large = scratch.zeros(25, np.int32), scratch.zeros(26, np.int32)
    assert [type(array.base).__name__ for array in (small, large)] == ["NoneType", "memmap"]
    assert list(tmp_path.iterdir()) == []
    for array in (small, large):
        assert not array.any()
        array[:] = 7
        assert array.sum() == 7 * len(array)
    assert len(scratch.zeros(0, np.int64)) == 0


def test_a_full_disk_is_an_error_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is reserved before anything is mapped, so that no write to a map can fail."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Scratch(tmp_path, 100).zeros(1_000, np.int32)
