"""The folder of a run: ``steps.jsonl``, a line a step, beside the checkpoints."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dagpack_cli.errors import OutputError
from dagpack_cli.storage import write_atomic
from dagpack_cli.training.checkpoints import newest_checkpoint

__all__ = ["check_run", "make_run", "open_log"]


def check_run(run: Path, *, resume: bool) -> None:
    """Raise unless a run can begin in a folder, or go on in it.

    Raises:
        OutputError: it is no folder, or holds another run and ``resume`` is not set.
        NoInputError: nothing to resume from.
    """
    if resume:
        newest_checkpoint(run)
    elif run.exists():
        if not run.is_dir():
            raise OutputError(str(run), "not a directory", "a folder for the run")
        if any(run.iterdir()):
            hint = "take another --run, or --resume to go on with the one in it"
            raise OutputError(str(run), "not empty", "an empty folder, or none", hint=hint)


def make_run(run: Path) -> None:
    """Make the folder of a run.

    Raises:
        OutputError: something else stands where it or its parents should be.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(str(run), "not a directory", "a folder for the run") from None


def open_log(run: Path | None, step: int) -> Any:
    """Return ``steps.jsonl``, open for more, without the lines after a step: those will be written again."""
    if run is None:
        return nullcontext(None)
    path = run / "steps.jsonl"
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = "".join(line for line in written.splitlines(keepends=True) if line[-1] == "\n" and _step_of(line) <= step)
    if kept != written:  # a line cut by a crash is no line
        write_atomic(path, kept.encode())
    return path.open("a", encoding="utf-8")


def _step_of(line: str) -> float:
    """Return the step of a line of ``steps.jsonl``; infinity for a line that is none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
