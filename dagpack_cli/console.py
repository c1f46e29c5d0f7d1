"""Standard error for people and logs: a bar on a terminal, plain lines elsewhere; errors in two lines."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from dagpack_cli.errors import DagpackError

__all__ = ["Console", "print_error"]

_LINE_SECONDS = 5.0


class Console:
    """Tells on standard error how a build goes on.

    On a terminal a tqdm bar a stage; without one, a plain line every few seconds and no carriage
    return, so that a log stays a log. Nothing but errors with ``quiet``.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stage = ""
        self._bar: Any = None
        self._last_line = time.monotonic()

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of a stage are finished."""
        if self._quiet:
            return
        if sys.stderr.isatty():
            self._show_bar(stage, done, total)
        elif time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            print(f"{stage}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    def _show_bar(self, stage: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = tqdm(total=total, desc=stage, leave=False, file=sys.stderr)
        self._bar.update(done - self._bar.n)

    def note(self, text: str) -> None:
        """Print something a person should know."""
        if not self._quiet:
            self.close()
            print(f"note: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar, self._stage = None, ""


def print_error(error: DagpackError) -> None:
    """Print an error and its hint; the traceback too where DAGPACK_DEBUG=1."""
    if os.environ.get("DAGPACK_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    print(f"hint: {error.advice}", file=sys.stderr)
