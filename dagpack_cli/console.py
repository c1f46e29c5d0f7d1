"""Standard error for people and logs: a bar on a terminal, plain lines elsewhere, or JSON; errors in two lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dagpack_cli.errors import DagpackError

__all__ = ["Console"]

_LINE_SECONDS = 5.0


class Console:
    """Tells on standard error how a command goes on and how it ended.

    On a terminal a tqdm bar a stage; without one, a plain line every few seconds and no carriage
    return, so that a log stays a log. Nothing but errors with ``quiet``. With ``log_json`` every line is
    a JSON object with ``ts``, ``level``, ``event`` and what belongs to the event, and the last one is a
    ``summary``: on success (but with ``quiet``), after a failure and after a signal.

    A log that cannot be written is no reason to stop a build: such lines are lost.

    Attributes:
        quiet: print nothing unless the command fails.
        log_json: print JSON.
        command: of which it tells.
        after_signal: what happens next where a signal ends the command; empty for nothing to say.
    """

    def __init__(self, *, quiet: bool = False, log_json: bool = False, command: str = "") -> None:
        self.quiet = quiet
        self.log_json = log_json
        self.command = command
        self.after_signal = ""
        self._beside = False
        self._result: dict[str, Any] = {"generation": None, "ledger": None}
        self._stage = ""
        self._bar: Any = None
        self._started = self._last_line = time.monotonic()

    @property
    def silent(self) -> bool:
        """Whether nothing is said unless the command fails: it is to be quiet, or another process speaks."""
        return self.quiet or self._beside

    def leave_to_first(self) -> None:
        """Leave all but errors to the first of the processes that ``torchrun`` started, if this is another one."""
        several = os.environ.get("WORLD_SIZE", "1") != "1"
        self._beside = several and os.environ.get("RANK", "0") != "0"

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of a stage are finished."""
        if self.silent:
            return
        late = time.monotonic() - self._last_line > _LINE_SECONDS
        if self.log_json:
            if late or done == total or stage != self._stage:
                self._stage, self._last_line = stage, time.monotonic()
                message = f"{stage}: {done:,} of {total:,}"
                self._log("info", "progress", stage=stage, done=done, total=total, message=message)
        elif sys.stderr.isatty():
            self._show_bar(stage, done, total)
        elif late:
            self._last_line = time.monotonic()
            self._print(f"{stage}: {done:,} of {total:,}")

    def _show_bar(self, stage: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = tqdm(total=total, desc=stage, leave=False, file=sys.stderr)
        self._bar.update(done - self._bar.n)

    def note(self, text: str) -> None:
        """Print something a person should know."""
        if self.silent:
            return
        self.close()
        if self.log_json:
            self._log("warning", "note", message=text)
        else:
            self._print(f"note: {text}")

    def tell(self, text: str) -> None:
        """Print a result that is not data."""
        if self.silent:
            return
        self.close()
        if self.log_json:
            self._log("info", "result", message=text)
        else:
            self._print(text)

    def warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Print what a library warns of, in the place of `warnings.showwarning`."""
        self.note(" ".join(str(message).split()))

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar, self._stage = None, ""

    def set_result(self, **facts: Any) -> None:
        """Remember facts of the result for the summary: ``generation``, ``path``, ``ledger`` and others."""
        self._result |= facts

    def end(self, code: int) -> None:
        """Tell that the command has ended without an error of dagpack's."""
        self.close()
        if self.log_json and not (self.silent and code == 0):
            self._summary("info" if code == 0 else "error", code, "done" if code == 0 else "failed", {})

    def fail(self, error: DagpackError) -> None:
        """Print an error and its hint; the traceback too where DAGPACK_DEBUG=1."""
        self.close()
        shown = "".join(traceback.format_exception(error)) if os.environ.get("DAGPACK_DEBUG") == "1" else ""
        if not self.log_json:
            self._print(f"{shown}error: {error}\nhint: {error.advice}")
            return
        facts: dict[str, Any] = {
            "kind": type(error).__name__,
            "where": error.where,
            "found": error.found,
            "expected": error.expected,
            "hint": error.advice,
            "code": error.exit_code,
        }
        self._summary("error", error.exit_code, str(error), {"error": facts | ({"traceback": shown} if shown else {})})

    def report_bug(self, error: Exception) -> None:
        """Print an exception that nobody expected, with its traceback."""
        self.close()
        shown = "".join(traceback.format_exception(error))
        found = f"{type(error).__name__}, a bug in dagpack"
        hint = "nothing was published; please report it with the command and these lines"
        code = DagpackError.exit_code
        if not self.log_json:
            self._print(f"{shown}error: dagpack: {found}; the lines above say where\nhint: {hint}")
            return
        facts = {"kind": type(error).__name__, "where": "dagpack", "found": found, "expected": "", "hint": hint}
        self._summary("error", code, f"dagpack: {found}", {"error": facts | {"code": code, "traceback": shown}})

    def stop(self, number: int) -> None:
        """Tell that a signal ends the command, and what happens next."""
        self.close()
        if self._beside:
            return
        name = signal.Signals(number).name
        if self.log_json:
            message = f"stopped: {name}" + (f"; {self.after_signal}" if self.after_signal else "")
            self._summary("error", 128 + number, message, {"signal": name})
        elif self.after_signal:
            self._print(f"stopped: {name}; {self.after_signal}")

    def _summary(self, level: str, code: int, message: str, more: Mapping[str, Any]) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        facts = {"command": self.command, "exit_code": code, "seconds": seconds, "message": message}
        self._log(level, "summary", **facts, **self._result, **more)

    def _log(self, level: str, event: str, **facts: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._print(json.dumps({"ts": now, "level": level, "event": event} | facts))

    def _print(self, text: str) -> None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
