"""The staging area of an output: the lock, what a finished stage left for the next command, and what is nobody's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagpack_cli.failpoints import step
from dagpack_cli.locks import lock_output
from dagpack_cli.pipeline.execution import Execution
from dagpack_cli.stages.cache import ReadSource
from dagpack_cli.stages.receipts import read_receipt
from dagpack_cli.storage import (
    CACHE,
    STAGING,
    canonical_json,
    is_full,
    write_atomic,
)

__all__ = [
    "SPEC",
    "clear_staging",
    "locked",
    "point_nowhere",
    "point_to",
    "pointed_stage",
    "read_sources",
    "read_spec",
    "staged_trie",
]

SPEC = "spec.json"
_NEXT = "next.json"
_STAGE = re.compile(r"[\w-]+(/[\w-]+)?")  # a folder of the staging area, or one in such a folder


@contextmanager
def locked(out: Path, execution: Execution) -> Iterator[None]:
    """Hold the lock; where the disk is full, remove the unfinished work that filled it, so that others can go on."""
    with lock_output(out, wait=execution.wait, tell=execution.listener.note):
        cached = set((out / CACHE).glob("*"))
        try:
            yield
        except OSError as error:
            if is_full(error):
                clear_staging(out)
                for path in set((out / CACHE).glob("*")) - cached:
                    shutil.rmtree(path, ignore_errors=True)
            raise


def clear_staging(out: Path, keep: str = "") -> None:
    """Remove unfinished work, but what a command of its own left for the next one, and ``keep``."""
    pointed = pointed_stage(out)
    for path in (out / STAGING).glob("*"):
        if not path.is_dir() or path.name == keep:
            continue
        mine = pointed is not None and pointed.is_relative_to(path)
        for unfinished in (*path.glob("*.partial"), *path.glob("pack-*")) if mine else (path,):
            with step("staging-remove"):
                shutil.rmtree(unfinished, ignore_errors=True)
    for partial in (out / STAGING).glob(".*.partial"):  # of a pointer that was never finished
        partial.unlink(missing_ok=True)


def point_to(out: Path, stage: Path) -> None:
    """Remember a finished stage for the command that takes the next step."""
    write_atomic(out / STAGING / _NEXT, canonical_json(stage.relative_to(out / STAGING).as_posix()))


def point_nowhere(out: Path) -> None:
    """Forget the stage: what is published now is newer."""
    (out / STAGING / _NEXT).unlink(missing_ok=True)


def pointed_stage(out: Path) -> Path | None:
    """Return the stage finished last by a command of its own, None where there is none."""
    try:
        name = json.loads((out / STAGING / _NEXT).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not _STAGE.fullmatch(name):
        return None
    stage = out / STAGING / name
    return stage if read_receipt(stage) is not None else None


def staged_trie(out: Path) -> Path | None:
    """Return the trie that `dedup` left for `pack`; what a failed build left is not meant by anyone."""
    pointed = pointed_stage(out)
    return pointed if pointed is not None and not (pointed / SPEC).is_file() else None


def read_spec(staged: Path) -> dict[str, Any]:
    """Return what an ingest was asked for, and what it found when it looked."""
    spec: dict[str, Any] = json.loads((staged / SPEC).read_bytes())
    return spec


def read_sources(out: Path, staged: Path) -> list[ReadSource]:
    """Return the inputs of a finished ingest."""
    listed = (read_receipt(staged) or {"sources": []})["sources"]
    return [ReadSource(out / CACHE / name, facts) for name, facts in listed]
