"""Builds that end at a failpoint, one after the other: a script.

    python crashes.py FOLDER kill|enospc|edquot|eio [quick]

FOLDER/corpus is a corpus, FOLDER/edited a later state of it and FOLDER/games one of games. A build of the
edited one over nothing, over a build of the first, and over its own build with what a crash may leave, ends
at each failpoint it reaches: the first time and the last (quick: the last alone). Then CURRENT must name a
whole generation, the old one or the new, and the same build again must end in the bytes of an undisturbed one,
with nothing left over.
Every build runs in a fork, so that no thread is ever copied. Failures go to stdout, the number of builds
that ended and the names of the failpoints that were reached to stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from killed import contents, failures_of

from dagpack_cli import failpoints
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.storage import read_current, translate_os_error


@dataclass(frozen=True)
class Scene:
    """A build that is disturbed: its corpus, and the output it starts from (None: there is none)."""

    name: str
    corpus: Path
    start: Path | None


def build_once(corpus: Path, out: Path, keep: int = 1) -> None:
    """Build with the options of every scene."""
    build(
        corpus,
        out,
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(val_fraction=0.3),
        pack_options=PackOptions(seq_len=64, on_long="split", polish=0),
        execution=Execution(keep=keep),
    )


def in_child(function: Callable[[], object]) -> int:
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


def _copy(start: Path | None, out: Path) -> None:
    if start is not None:
        shutil.copytree(start, out)


def _reached(scene: Scene, folder: Path) -> list[str]:
    """Return the failpoints that an undisturbed build reaches, in order; it is left in FOLDER/NAME."""
    out, names = folder / scene.name, folder / f"{scene.name}.names"
    _copy(scene.start, out)

    def listed() -> None:
        with names.open("w") as file:
            failpoints.listen(lambda name: print(name, file=file))
            build_once(scene.corpus, out)

    in_child(listed)
    return names.read_text().split()


def _end(scene: Scene, out: Path, setting: str, action: str) -> None:
    """Build until the failpoint, and after an error look at its kind and at what it left."""
    failpoints.arm(f"{setting}:{action}")
    before = sorted(path.name for path in (out / "generations").glob("*"))
    current = None if scene.start is None else read_current(out)
    try:
        build_once(scene.corpus, out)
    except OSError as error:
        if translate_os_error(error).exit_code != 74:
            print(f"{scene.name}, {setting}: exit {translate_os_error(error).exit_code}")
        if action == "eio":
            return
        left = [path.name for path in (out / ".staging").glob("*")]
        after = sorted(path.name for path in (out / "generations").glob("*"))
        if left or (read_current(out) == current and after != before):
            print(f"{scene.name}, {setting}: no space is given back: {left}, {before}, {after}")


def _check(scene: Scene, out: Path, setting: str, wanted: dict[str, str], old: dict[str, str] | None) -> None:
    """Look at the output that was left, build again and look once more."""
    told = f"{scene.name}, {setting}"
    if read_current(out) is None:
        if scene.start is not None:
            print(f"{told}: no generation is current")
    else:
        now = contents(out)
        if now not in (wanted, old):
            print(f"{told}: the current generation is neither the old nor the new one: {failures_of(out)}")
    build_once(scene.corpus, out)
    if contents(out) != wanted:
        print(f"{told}: the next build ends in other bytes: {failures_of(out)}")
    current = read_current(out)
    generations = [path.name for path in (out / "generations").iterdir()]
    if current is None or generations != [current[0]]:
        print(f"{told}: generations {generations}, current {current}")
    partial_files = [str(path) for path in out.rglob("*.partial")]
    left = [path.name for path in (out / ".staging").glob("*")]
    if partial_files or left or sorted(path.name for path in out.iterdir())[-1] != "generations":
        print(f"{told}: left over: {partial_files}, {left}")


def _littered(folder: Path) -> Path:
    """Return an output whose build is finished, with an older generation and what crashes may leave beside it."""
    out = folder / "littered"

    def make() -> None:
        build_once(folder / "corpus", out, keep=2)
        build_once(folder / "edited", out, keep=2)
        generations = sorted((out / "generations").iterdir())
        shutil.copytree(generations[0], out / "generations" / "000009-0123456789ab")
        (out / ".staging" / "0123456789ab" / "splits").mkdir(parents=True)
        (out / ".CURRENT.partial").write_bytes(b"{")
        (out / ".staging" / ".next.json.partial").write_bytes(b"{")
        (out / "LOCK").write_text(json.dumps({"host": "nowhere", "pid": 1}))

    in_child(make)
    return out


def main(folder: Path, action: str, *, quick: bool) -> None:
    """End, check and repeat."""
    # A killed process loses nothing that it has written, so only the time of syncing would be tested.
    os.fsync = lambda fd: None
    for name in ("corpus", "edited"):
        in_child(partial(build_once, folder / name, folder / f"built-{name}"))
    scenes = [
        Scene("first", folder / "edited", None),
        Scene("rebuild", folder / "edited", folder / "built-corpus"),
        Scene("unchanged", folder / "edited", _littered(folder)),
        Scene("symbols", folder / "games", None),
    ]
    ended, seen = 0, set[str]()
    for scene in scenes:
        reached = Counter(_reached(scene, folder))
        wanted = contents(folder / scene.name)
        old = None if scene.start is None else contents(scene.start)
        for name, times in reached.items():
            if scene.name == "symbols" and name in seen:
                continue
            if quick and action != "kill" and name.endswith(".after"):
                continue
            for number in sorted({times} if quick else {1, times}):
                setting, out = f"{name}:{number}", folder / "out"
                _copy(scene.start, out)
                status = in_child(partial(_end, scene, out, setting, action))
                if action == "kill" and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                    print(f"{scene.name}, {setting}: the build was not killed")
                in_child(partial(_check, scene, out, setting, wanted, old))
                shutil.rmtree(out)
                ended += 1
        seen |= set(reached)
    print(ended, *sorted(seen), file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], quick="quick" in sys.argv[3:])
