"""Crash safety: a build may end at any step, by a kill, a full disk or a signal, and costs nothing but time."""

from __future__ import annotations

import ast
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import random_kills
from commands import TINY, command, environment
from commands import run as run_command
from killed import contents, failures_of
from test_determinism import game_files, token_files, write

from dagpack_cli import failpoints
from dagpack_cli.errors import BusyError, UsageError
from dagpack_cli.failpoints import EXPORT_STEPS, FAILPOINTS, REMOTE_STEPS, STEPS
from dagpack_cli.locks import lock_output
from dagpack_cli.storage import is_full, read_current, translate_os_error

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "dagpack_cli"
OPTIONS = ("--seq-len", "64", "--on-long", "split", "--polish", "0")
GOES_ON = "the current build stays, and the same command goes on where this one stopped"


def write_scenes(folder: Path) -> None:
    """Write the corpora that the script `crashes` takes."""
    files = token_files(1, num_files=3, num_records=5)
    write(folder / "corpus", files)
    extra = token_files(2, num_files=1, num_records=5)["d0/f00.jsonl"]
    # One file is left, so that what has been read of the others is removed.
    write(folder / "edited", {name: files[name] for name in sorted(files)[:1]} | {"extra.jsonl": extra})
    write(folder / "games", game_files(1, num_files=2))


@pytest.mark.parametrize("action", ["kill", "enospc"])
def test_ended_at_every_failpoint(action: str, tmp_path: Path) -> None:
    """Killed or failed at each failpoint, in a first build, a rebuild and an unchanged one: nothing is lost or left."""
    write_scenes(tmp_path)
    words = [sys.executable, str(HERE / "crashes.py"), str(tmp_path), action, "quick"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout == ""
    number, *names = ran.stderr.split()
    assert int(number) > 40
    assert sorted(names) == sorted(FAILPOINTS)


def test_every_step_stands_in_the_code_once() -> None:
    """The steps that are listed are those of the code, no more and no less."""
    found = [
        node.args[0].value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "step"
        if isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(map(str, found)) == sorted((*STEPS, *REMOTE_STEPS, *EXPORT_STEPS))


def test_a_setting_of_another_form_is_refused(tmp_path: Path) -> None:
    """A failpoint that does not exist is a usage error, not a build without one."""
    for setting in ("nowhere", "run-write", "run-write.before:x", "run-write.before:1:explode"):
        with pytest.raises(UsageError, match="DAGPACK_FAILPOINT"):
            failpoints.arm(setting)
    done = subprocess.run(
        command("build", TINY / "text", tmp_path / "out"),
        capture_output=True,
        text=True,
        env=environment(DAGPACK_FAILPOINT="run-write.before:1:eio"),
        check=False,
    )
    assert done.returncode == 74
    assert done.stderr.startswith(f"error: {tmp_path / 'out'}: input/output error\n")


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """SIGKILL at any moment, again and again on the same output, costs nothing but time."""
    where = random_kills.run(tmp_path, 12, random.Random())
    assert where.total() == 12


def _du(folder: Path) -> int:
    return sum(path.lstat().st_blocks for path in folder.rglob("*") if path.is_file())


@contextmanager
def _tmpfs(folder: Path, size: int) -> Iterator[Path]:
    """Mount a small file system; skip where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # columns may still be mapped


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_a_disk_of_any_size(shard_format: str, tmp_path: Path) -> None:
    """On a disk too small by much or little a rebuild ends with 74, gives its space back, and leaves what was there."""
    (tmp_path / "mountable").mkdir()
    old = write(tmp_path / "old", token_files(1, num_files=1, num_records=4))
    new = write(tmp_path / "new", token_files(8, num_files=4, num_records=60))
    options = (*OPTIONS, "--shard-format", shard_format, "--quiet")
    for name, corpus in (("old", old), ("new", new)):
        assert run_command("build", corpus, tmp_path / f"whole-{name}", *options).code == 0
    wanted = contents(tmp_path / "whole-new")
    enough = 512 * (_du(tmp_path / "whole-new") + _du(tmp_path / "whole-old"))
    failed, size = 0, 0
    while True:
        with _tmpfs(tmp_path / f"disk-{size}", max(size, 4096)) as disk:
            out = disk / "out"
            first = run_command("build", old, out, *options)
            assert first.code in (0, 74), first.err
            before, used = (read_current(out), _du(out)) if first.code == 0 else (None, 0)
            ran = run_command("build", new, out, *options)
            if ran.code == 0:
                assert contents(out) == wanted
                break
            failed += 1
            assert ran.code == 74, ran.err
            assert "no space left on device; room for what is written\nhint: free some space" in ran.err
            assert str(disk) in ran.err
            assert read_current(out) == before
            assert before is None or failures_of(out) == []
            assert _du(out) <= used + 8, "what the failed build wrote is given back, but for the lock"
        size += enough // 7
    assert failed >= 5


@pytest.mark.parametrize(
    ("error", "code", "full"),
    [
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), 74, True),
        (OSError("4096 requested and 100 written"), 74, False),
        (OSError("write failed: Disk quota exceeded"), 74, True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 74, True),
        (OSError("Detail: [errno 5] Input/output error"), 74, False),
        (OSError("Cannot open: Permission denied"), 77, False),
    ],
)
def test_errors_that_libraries_tell_in_words(error: OSError, code: int, full: bool) -> None:
    """What numpy or pyarrow raise without a number is told by what it says."""
    assert translate_os_error(error).exit_code == code
    assert is_full(error) is full


# Where a build can be told to wait, one for each stage; in the first it is a worker that waits.
STAGES = [
    "split-write.before",
    "spec-write.after",
    "trie-write.before",
    "shards-write.before",
    "file-sync.before:9",
    "generation-rename.after",
    "current-write.after",
]


def _wait_for(happens: Callable[[], bool]) -> None:
    for _ in range(3000):
        if happens():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


_SMALL_SPLITS = """
import dagpack_cli.stages.ingest
from dagpack_cli.cli import main
dagpack_cli.stages.ingest._SPLIT_BYTES = 100
main()
"""


@contextmanager
def _paused(setting: str, flag: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start a command, of many small splits, that waits at a failpoint; whatever it started ends with the body."""
    variable = f"{setting}{'' if ':' in setting else ':1'}:pause={flag}"
    with subprocess.Popen(
        [sys.executable, "-c", _SMALL_SPLITS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(DAGPACK_FAILPOINT=variable),
        start_new_session=True,
    ) as process:
        try:
            _wait_for(lambda: flag.exists() or process.poll() is not None)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _group_is_gone(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of ids in several files."""
    return write(tmp_path_factory.mktemp("signals") / "corpus", token_files(1, num_files=3, num_records=4))


@pytest.fixture(scope="module")
def whole(corpus: Path) -> dict[str, str]:
    """What an undisturbed build of it holds."""
    assert run_command("build", corpus, corpus.parent / "whole", *OPTIONS, "--quiet").code == 0
    return contents(corpus.parent / "whole")


@pytest.mark.parametrize("setting", STAGES)
def test_a_signal_in_every_stage(setting: str, corpus: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """SIGTERM ends the build and its workers by that signal, says what is next, holds no lock, and a rerun is whole."""
    out = tmp_path / "out"
    with _paused(setting, tmp_path / "flag", "build", corpus, out, *OPTIONS, "--workers", "2", "--quiet") as process:
        os.killpg(process.pid, signal.SIGTERM)  # as systemd and timeout do: every process gets it
        printed = process.communicate(timeout=30)
        assert printed == ("", f"stopped: SIGTERM; {GOES_ON}\n")
        assert process.returncode == -signal.SIGTERM
        _wait_for(lambda: _group_is_gone(process.pid))
    assert (out / "LOCK").read_bytes() == b""
    with lock_output(out):
        pass
    assert run_command("build", corpus, out, *OPTIONS, "--quiet").code == 0
    assert contents(out) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_in_a_row(number: signal.Signals, corpus: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """A second signal at once ends the build no less cleanly for whoever comes next."""
    out = tmp_path / "out"
    with _paused(
        "trie-write.before", tmp_path / "flag", "build", corpus, out, *OPTIONS, "--workers", "2", "--quiet"
    ) as process:
        for _ in range(5):
            process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert process.returncode == -number
        assert said in ("", f"stopped: {number.name}; {GOES_ON}\n")
        _wait_for(lambda: _group_is_gone(process.pid))
    assert run_command("build", corpus, out, *OPTIONS, "--quiet").code == 0
    assert contents(out) == whole


def test_a_worker_that_is_ended_from_outside(corpus: Path, tmp_path: Path) -> None:
    """Where the system kills a reader, as for want of memory, that is no bug of dagpack's, and a rerun works."""
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_SPLITS, "build", corpus, tmp_path / "out", *OPTIONS, "--workers", "2"],
        capture_output=True,
        text=True,
        env=environment(DAGPACK_FAILPOINT="split-write.after:1:kill"),
        check=False,
    )
    assert done.returncode == 74
    assert done.stderr == (
        "error: --workers 2: a process that read the corpus was ended from outside, perhaps for want of memory; "
        "all of them to end by themselves\nhint: the same command with --workers 1 reads in one process\n"
    )
    assert run_command("build", corpus, tmp_path / "out", *OPTIONS, "--workers", "1", "--quiet").code == 0


def test_four_builds_at_once(corpus: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """One of them runs, three end with 75 and say who holds the lock."""
    out = tmp_path / "out"
    with _paused("spec-write.before", tmp_path / "flag", "build", corpus, out, *OPTIONS) as process:
        holder = f"process {process.pid} on {os.uname().nodename}"
        for _ in range(3):
            ran = run_command("build", corpus, out, *OPTIONS)
            assert (ran.code, ran.out) == (75, "")
            assert ran.err.startswith(f"error: {out}: another build ({holder}) holds the lock; one build at a time\n")
        began = time.monotonic()
        ran = run_command("build", corpus, out, "--wait", "0.2")
        assert time.monotonic() - began >= 0.2
        assert ran.code == 75
        first, *error = ran.err.splitlines()
        assert first == f"note: waiting up to 0.2 s: another build ({holder}) holds the lock of {out}"
        assert error == [
            f"error: {out}: another build ({holder}) holds the lock after 0.2 s; one build at a time",
            "hint: try again when it has ended",
        ]
    assert run_command("build", corpus, out, *OPTIONS, "--quiet").code == 0
    assert contents(out) == whole


def test_builds_that_wait_for_one_another(corpus: Path, whole: dict[str, str], tmp_path: Path) -> None:
    """With `--wait` four builds run in turn, and three of them find nothing to do."""
    out = tmp_path / "out"
    words = command("build", corpus, out, *OPTIONS, "--wait", "60")
    processes = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        for _ in range(4)
    ]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(text.startswith("unchanged: ") for text in said) == 3
    assert contents(out) == whole


def test_a_signal_while_waiting_for_the_lock(corpus: Path, tmp_path: Path) -> None:
    """A build that waits ends by the signal at once and leaves the holder alone."""
    out = tmp_path / "out"
    with lock_output(out):
        signed = (out / "LOCK").read_bytes()
        with subprocess.Popen(
            command("build", corpus, out, "--wait", "600"), stderr=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("note: waiting up to 600 s: another build (process ")
            process.send_signal(signal.SIGTERM)
            assert process.stderr.read() == f"stopped: SIGTERM; {GOES_ON}\n"
        assert process.returncode == -signal.SIGTERM
        assert (out / "LOCK").read_bytes() == signed


def test_a_lock_that_a_killed_build_signed_names_nobody(tmp_path: Path) -> None:
    """Who died holding the lock is not named as its holder."""
    ended = subprocess.run(["true"], check=True)
    assert ended.returncode == 0
    with lock_output(tmp_path):
        (tmp_path / "LOCK").write_text(json.dumps({"host": os.uname().nodename, "pid": 2**22 + 1}))
        with pytest.raises(BusyError, match="another build holds the lock; one"), lock_output(tmp_path):
            pass


def test_an_unchanged_build_removes_what_a_reader_has_left(corpus: Path, tmp_path: Path) -> None:
    """A generation that is read stays, and goes with the next build after that, though that has nothing to do."""
    from dagpack_cli.storage import open_current

    out, mine = tmp_path / "out", tmp_path / "corpus"
    shutil.copytree(corpus, mine)
    words = ("build", mine, out, *OPTIONS, "--keep", "1")
    assert run_command(*words).code == 0
    with open_current(out) as held:
        write(mine, {"more.jsonl": '{"input_ids": [1, 2, 3]}\n'})
        for _ in range(2):
            ran = run_command(*words)
            assert ran.err == f"note: generation {held.name} stays: it is being read\n"
        assert held.path.is_dir()
    assert run_command(*words).out.startswith("unchanged: ")
    assert [path.name for path in (out / "generations").iterdir()] == [read_current(out)[0]]  # type: ignore[index]


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_wait_is_bounded(value: str, corpus: Path, tmp_path: Path) -> None:
    """`--wait` takes seconds from 0 on, and no eternity."""
    ran = run_command("build", corpus, tmp_path / "out", f"--wait={value}")
    assert ran.code == 2
    assert ran.err.startswith(f"error: --wait: {float(value)}; a number of seconds, at least 0\n")
