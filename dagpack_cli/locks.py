"""The lock of an output directory: an exclusive ``flock`` on ``LOCK``, in which its holder writes who it is."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dagpack_cli.errors import BusyError, OutputError
from dagpack_cli.storage import CACHE, CURRENT, GENERATIONS, LOCK, STAGING, canonical_json

__all__ = ["lock_output"]

_OURS = "what dagpack makes under this name, or nothing"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two tries


@contextmanager
def lock_output(out: Path, *, wait: float = 0.0, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the exclusive lock of an output directory, creating both; the lock file is never unlinked.

    Args:
        out: the output directory.
        wait: seconds to wait at most for another holder to end.
        tell: hears, once, that somebody is waited for.

    Raises:
        BusyError: another process holds it, still after ``wait``.
        OutputError: ``out`` cannot be a directory, or what is in it stands where dagpack writes.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(str(out), "not a directory", "a directory, or a new name for one") from None
    except FileNotFoundError:  # a file system in which nothing can be made
        raise OutputError(str(out), "cannot be created", "a directory that can be written") from None
    _check_places(out)
    with (out / LOCK).open("a+b", buffering=0) as file:
        _wait_for_lock(file, out, wait, tell)
        try:
            _sign(file, canonical_json({"host": platform.node(), "pid": os.getpid()}) + b"\n")
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(out)  # a write that failed does not know its file
            raise
        finally:
            _sign(file, b"")


def _check_places(out: Path) -> None:
    """Raise where a file stands in the place of a folder of dagpack's, or a folder in that of a file."""
    for name in (GENERATIONS, STAGING, CACHE):
        if (out / name).is_file():
            raise OutputError(str(out / name), "a file", _OURS, hint=f"move it away: mv {out / name} ELSEWHERE")
    for name in (LOCK, CURRENT):
        if (out / name).is_dir():
            raise OutputError(str(out / name), "a folder", _OURS, hint=f"move it away: mv {out / name} ELSEWHERE")


def _wait_for_lock(file: IO[bytes], out: Path, wait: float, tell: Callable[[str], None]) -> None:
    """Take the lock, trying again until the time is over."""
    last, pause = time.monotonic() + wait, _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(out)
        else:
            return
        left = last - time.monotonic()
        if left <= 0:
            after = f" after {wait:g} s" if wait else ""
            hint = "" if wait else "try again when it has ended, or let this command wait: --wait SECONDS"
            raise BusyError(str(out), f"another build{holder} holds the lock{after}", "one build at a time", hint=hint)
        if pause == _FIRST_PAUSE:
            tell(f"waiting up to {wait:g} s: another build{holder} holds the lock of {out}")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _sign(file: IO[bytes], text: bytes) -> None:
    """Write into the lock who holds it: for messages alone, so a full disk is no reason to stop.

    Its times stay: where nothing has changed, nothing in the output looks as if it had.
    """
    with suppress(OSError):
        before = os.fstat(file.fileno())
        file.truncate(0)
        file.write(text)
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))


def _holder(out: Path) -> str:
    """Return who holds the lock, for a message; nothing where that is not known."""
    try:
        signed = json.loads((out / LOCK).read_bytes())
        host, pid = str(signed["host"]), int(signed["pid"])
        if host == platform.node():
            os.kill(pid, 0)  # what a killed build left says nothing of who holds the lock now
    except PermissionError:
        pass  # alive, and another user's
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f" (process {pid} on {host})"
