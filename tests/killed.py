"""Builds that are killed before each step that touches files, one after the other: a script.

    python killed.py FOLDER

FOLDER/first and FOLDER/second are two states of a corpus. A build of the second, over a finished build
of the first and over nothing, is killed before and after every rename (all that completes a stage is
one) and before some of the other steps. In between the current generation must be whole, and the next
build must end in the bytes of an undisturbed one, with nothing left over.
Everything but the forks happens in children, so that no thread is ever copied. Failures go to stdout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dagpack_cli.manifest import IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.storage import open_current, read_current
from dagpack_cli.verify import verify_generation

_STEPS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link"}


def contents(out: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of the current generation, by name, but for ``run.json``."""
    with open_current(out) as generation:
        files = sorted(path for path in generation.path.rglob("*") if path.is_file() and path.name != "run.json")
        return {
            path.relative_to(generation.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }


def failures_of(out: Path) -> list[str]:
    """Return what `verify` finds wrong with the current generation."""
    with open_current(out) as generation:
        manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
        return verify_generation(generation.path, manifest).failures


def _build(corpus: Path, out: Path) -> None:
    build(
        corpus,
        out,
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(val_fraction=0.3),
        pack_options=PackOptions(seq_len=64, on_long="split", polish=0),
        execution=Execution(),
    )


def _hear_steps(react: Callable[[int, str], None]) -> None:
    """Call a function before each change of a file or name from now on, with its number and its kind."""
    step = 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal step
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in _STEPS:
            step += 1
            react(step, event)

    sys.addaudithook(hear)


def _in_child(function: Callable[[], object]) -> int:
    """Run a function in a fork; return its wait status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _killed(corpus: Path, out: Path, last: int) -> None:
    def react(step: int, _: str) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    _hear_steps(react)
    _build(corpus, out)


def _listed(corpus: Path, out: Path, kinds: int) -> None:
    """Build, and write the kind of every step to a descriptor."""

    def react(_: int, kind: str) -> None:
        os.write(kinds, f"{kind}\n".encode())

    _hear_steps(react)
    _build(corpus, out)


def _check(folder: Path, out: Path, step: int, *, has_first: bool) -> None:
    wanted = contents(folder / "undisturbed")
    if read_current(out) is None:
        if has_first:
            print(f"step {step}: no generation is current")
    else:
        now = contents(out)
        if now not in (wanted, contents(folder / "old")) or (now != wanted and not has_first):
            print(f"step {step}: the current generation is neither the old nor the new one")
        for failure in failures_of(out):
            print(f"step {step}: {failure}")
    _build(folder / "second", out)
    if contents(out) != wanted:
        print(f"step {step}: the next build ends in other bytes")
    for failure in failures_of(out):
        print(f"step {step}: after the next build: {failure}")
    left = sorted(path.name for path in (out / ".staging").iterdir()) if (out / ".staging").is_dir() else []
    if left:
        print(f"step {step}: left in staging: {left}")
    generations = sorted(path.name for path in (out / "generations").iterdir())
    undisturbed = [path.name for path in (folder / ("undisturbed" if has_first else "alone") / "generations").iterdir()]
    if generations != sorted(undisturbed):
        print(f"step {step}: generations {generations}, undisturbed {sorted(undisturbed)}")


def _chosen(kinds: list[str], stride: int) -> list[int]:
    """Return the numbers of the steps to die before: every rename, what follows it, and each ``stride``-th."""
    renames = {number for number, kind in enumerate(kinds, 1) if kind == "os.rename"}
    others = set(range(1, len(kinds) + 1, stride))
    return sorted(renames | {number + 1 for number in renames if number < len(kinds)} | others)


def main(folder: Path) -> None:
    """Kill, check and repeat; print to stderr how often."""
    # A killed process loses nothing that it has written, so only the time of syncing would be tested.
    os.fsync = lambda fd: None
    second, num_killed = folder / "second", 0
    _in_child(lambda: _build(folder / "first", folder / "old"))
    for has_first, name, stride in ((True, "undisturbed", 9), (False, "alone", 30)):
        if has_first:
            shutil.copytree(folder / "old", folder / name)
        with (folder / f"{name}.steps").open("w+") as kinds:
            _in_child(partial(_listed, second, folder / name, kinds.fileno()))
            kinds.seek(0)
            steps = _chosen(kinds.read().split(), stride)
        for step in steps:
            out = folder / f"{name}-{step}"
            if has_first:
                shutil.copytree(folder / "old", out)
            if not os.WIFSIGNALED(_in_child(partial(_killed, second, out, step))):
                print(f"step {step}: the build was not killed")
            _in_child(partial(_check, folder, out, step, has_first=has_first))
            shutil.rmtree(out)
            num_killed += 1
    print(num_killed, file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
