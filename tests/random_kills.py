"""Builds and rebuilds with two workers, killed at random moments while they hold the lock."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from killed import contents, failures_of

from dagpack_cli.storage import read_current

_COMMAND = """
import dagpack_cli.stages.ingest
from dagpack_cli.cli import main
dagpack_cli.stages.ingest._SPLIT_BYTES = 4_000
main()
"""
_OPTIONS = ("--seq-len", "64", "--on-long", "split", "--polish", "0", "--workers", "2", "--keep", "1", "--quiet")


def write_corpora(folder: Path) -> list[Path]:
    """Write two states of a corpus of ids that have most of their files in common."""
    draw = random.Random(11)
    files = []
    for _ in range(14):
        trunk = [draw.randrange(1, 40) for _ in range(30)]
        rows = [trunk[: draw.randrange(1, 30)] + [draw.randrange(1, 40) for _ in range(40)] for _ in range(12)]
        files.append("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    states = []
    for name, chosen in (("one", files[:12]), ("two", files[2:])):
        (folder / name).mkdir(parents=True)
        for number, text in enumerate(chosen):
            (folder / name / f"{number:02d}.jsonl").write_text(text)
        states.append(folder / name)
    return states


def _start(corpus: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", _COMMAND, "build", str(corpus), str(out), *_OPTIONS]
    return subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True)


def _holds_lock(process: subprocess.Popen[bytes], out: Path) -> bool:
    """Wait until a build holds the lock; false where it ended first."""
    while process.poll() is None:
        with suppress(OSError, ValueError):
            if json.loads((out / "LOCK").read_bytes())["pid"] == process.pid:
                return True
        time.sleep(0.002)
    return False


def _finish(corpus: Path, out: Path) -> float:
    """Build undisturbed; return the seconds for which the lock was held."""
    process = _start(corpus, out)
    _holds_lock(process, out)
    began = time.monotonic()
    _, said = process.communicate()
    if process.returncode != 0:
        raise AssertionError(said.decode())
    return time.monotonic() - began


def _litter(out: Path) -> list[str]:
    """Return what a finished build should not have left in an output."""
    current = read_current(out)
    found = [str(path) for path in (*out.rglob("*.partial"), *(out / ".staging").glob("*"))]
    names = [path.name for path in (out / "generations").iterdir()]
    return found if current is not None and names == [current[0]] else [*found, *names]


def run(folder: Path, num_kills: int, draw: random.Random) -> Counter[str]:
    """Kill builds of one output, now of one state of its corpus, now of the other; return where they died.

    After every kill the current generation must be whole and one of the two; after every third the same
    build must end in the bytes of an undisturbed one, with nothing left over.

    Raises:
        AssertionError: one of that is not so.
    """
    states = write_corpora(folder)
    wanted, seconds = [], 0.0
    for state in states:
        seconds = _finish(state, folder / f"expected-{state.name}")
        wanted.append(contents(folder / f"expected-{state.name}"))
        assert failures_of(folder / f"expected-{state.name}") == []
    out, where = folder / "out", Counter[str]()
    at = 0
    for number in range(num_kills):
        # Mostly the state that is not current, so that there is something to do.
        at = draw.randrange(2) if number % 6 == 5 else 1 - at
        before = read_current(out)
        process = _start(states[at], out)
        died = "ended first"
        if _holds_lock(process, out):
            time.sleep(draw.uniform(0, 0.9 * seconds))
            process.kill()
            if process.wait() == -signal.SIGKILL:
                died = _stage(out, before)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a worker that has not seen it yet
        process.communicate()
        where[died] += 1
        if read_current(out) is None:
            assert before is None, f"kill {number}: no generation is current"
        else:
            assert contents(out) in wanted, f"kill {number}: {failures_of(out)}"
        if number % 3 == 2 or number == num_kills - 1:
            _finish(states[at], out)
            assert contents(out) == wanted[at], f"kill {number}: other bytes; {failures_of(out)}"
            assert _litter(out) == [], f"kill {number}"
    return where


def _stage(out: Path, before: tuple[str, str] | None) -> str:
    """Return how far a killed build had come, by what it left."""
    if read_current(out) != before:
        return "after CURRENT"
    names = [path.relative_to(out).as_posix() for path in (out / ".staging").rglob("*")]
    if any("/pack-" in name for name in names):
        return "packing"
    if any("/trie-" in name for name in names):
        return "merging"
    return "reading" if any("/splits" in name for name in names) else "before reading"
