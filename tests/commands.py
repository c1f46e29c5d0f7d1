"""The command line as tests call it: in this process for speed, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagpack_cli.cli import main

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TINY, BROKEN, AGENTS = FIXTURES / "tiny", FIXTURES / "broken", FIXTURES / "agents"


@dataclass(frozen=True)
class Ran:
    """What a command left behind: its exit status and both streams."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path) -> Ran:
    """Run a command in this process, signal handlers restored."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(code, int)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Ran(code, *texts)


def command(*arguments: str | Path) -> list[str]:
    """Return the words that run a command as a process."""
    return [sys.executable, "-m", "dagpack_cli", *(str(argument) for argument in arguments)]


def environment(**extra: str) -> dict[str, str]:
    """Return this environment without what would change a command's output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DAGPACK_DEBUG", "PYTHONUNBUFFERED")}
    return kept | {"PYTHONWARNINGS": "error"} | extra


def run_process(words: Sequence[str], *, env: Mapping[str, str] | None = None) -> Ran:
    """Run words as a process and wait for it; a negative code is the signal that ended it."""
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, env=environment() if env is None else dict(env)
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def build(out: Path, *options: str, corpus: Path = TINY / "pretokenised") -> Path:
    """Build a corpus, and return the directory of the generation."""
    ran = run("build", corpus, out, *options)
    assert ran.code == 0, ran.err
    return Path(run("path", out).out.rstrip("\n"))
