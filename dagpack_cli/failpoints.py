"""Places at which a test can kill a build, fail a write or hold it; without a test they do nothing.

``DAGPACK_FAILPOINT=NAME[:N[:ACTION]]`` acts when the process (a worker counts for itself) reaches ``NAME``
for the N-th time, by default the first. A name is a step of `STEPS`, `REMOTE_STEPS` or `EXPORT_STEPS` with
``.before`` or ``.after``. Actions:

* ``kill`` (default): SIGKILL, as by a crash;
* ``enospc``, ``edquot``, ``eio``: the error of the operating system, as from a failed write;
* ``pause=PATH``: make the file PATH and wait there, at most ten minutes, for a signal.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dagpack_cli.errors import UsageError

__all__ = [
    "EXPORT_FAILPOINTS",
    "EXPORT_STEPS",
    "FAILPOINTS",
    "REMOTE_FAILPOINTS",
    "REMOTE_STEPS",
    "STEPS",
    "arm",
    "arm_from_environment",
    "listen",
    "step",
]

_VARIABLE = "DAGPACK_FAILPOINT"
_PAUSE_SECONDS = 600.0

# What is done to files on the way from a corpus to a published generation, in about that order.
STEPS = (
    "spec-write",
    "split-write",
    "symbols-write",
    "cache-rename",
    "atomic-write",
    "atomic-sync",
    "atomic-rename",
    "file-sync",
    "directory-sync",
    "symbols-store",
    "tokenizer-write",
    "trie-write",
    "provenance-write",
    "trie-rename",
    "trie-link",
    "shards-write",
    "examples-write",
    "manifest-write",
    "run-write",
    "generation-rename",
    "current-write",
    "old-unlink",
    "old-remove",
    "staging-remove",
    "cache-remove",
)
# What is done between a local folder and an object store, in about that order.
REMOTE_STEPS = (
    "remote-fetch",
    "remote-record",
    "remote-upload",
    "remote-manifest",
    "remote-current",
    "remote-remove",
)
# How a file of `export` is written.
EXPORT_STEPS = ("export-write", "export-sync", "export-rename")
FAILPOINTS, REMOTE_FAILPOINTS, EXPORT_FAILPOINTS = (
    tuple(f"{name}.{when}" for name in steps for when in ("before", "after"))
    for steps in (STEPS, REMOTE_STEPS, EXPORT_STEPS)
)
_ERRORS = {"enospc": errno.ENOSPC, "edquot": errno.EDQUOT, "eio": errno.EIO}

_listener: Callable[[str], None] | None = None


@contextmanager
def step(name: str) -> Iterator[None]:
    """Do one of the steps: its failpoints stand before and after the body, the second where nothing was raised."""
    if _listener is not None:
        _listener(f"{name}.before")
    yield
    if _listener is not None:
        _listener(f"{name}.after")


def listen(listener: Callable[[str], None] | None) -> None:
    """Call a function with every failpoint that is reached from now on; None for nobody."""
    global _listener
    _listener = listener


def arm(setting: str) -> None:
    """Act as ``DAGPACK_FAILPOINT=setting`` does.

    Raises:
        UsageError: it is not ``NAME[:N[:ACTION]]``.
    """
    name, number, action = (*setting.split(":", 2), "", "")[:3]
    kind, _, path = action.partition("=")
    number, kind = number or "1", kind or "kill"
    if (
        name not in (*FAILPOINTS, *REMOTE_FAILPOINTS, *EXPORT_FAILPOINTS)
        or not number.isdecimal()
        or kind not in ("kill", "pause", *_ERRORS)
    ):
        raise UsageError(_VARIABLE, f'"{setting}"', "NAME[:N[:ACTION]] of the module failpoints", hint="unset it")
    counts: Counter[str] = Counter()

    def act(reached: str) -> None:
        counts[reached] += 1
        if reached == name and counts[reached] == int(number):
            _act(kind, path)

    listen(act)


def _act(kind: str, path: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind in _ERRORS:
        raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]))
    if path:
        Path(path).touch()
    time.sleep(_PAUSE_SECONDS)


def arm_from_environment() -> None:
    """Arm what the environment names; without it nothing is changed."""
    if setting := os.environ.get(_VARIABLE):
        arm(setting)
