"""The log for machines: every line of standard error is one JSON object, and the last one says how it ended."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from commands import AGENTS, BROKEN, TINY, Ran, command, environment, run
from torch import nn

from dagpack_cli.console import Console
from dagpack_cli.errors import UsageError
from dagpack_cli.locks import lock_output

OPTIONS = ("--polish", "0", "--log-json")


def _lines(text: str) -> list[dict[str, Any]]:
    """Return the objects of a log, after looking at what all of them have."""
    assert "\r" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert line["ts"].endswith("Z")
        assert line["level"] in ("info", "warning", "error")
        assert line["event"]
        assert line["message"]
    assert [line["event"] for line in lines].count("summary") == 1
    assert lines[-1]["event"] == "summary"
    return lines


def _summary(ran: Ran, code: int) -> dict[str, Any]:
    """Return the last line of what a command logged, which ended with a code."""
    last = _lines(ran.err)[-1]
    assert ran.code == last["exit_code"] == code
    assert last["seconds"] >= 0
    return last


def test_every_command_that_works_long_logs_json(tmp_path: Path) -> None:
    """Build, its stages, verify and export tell in JSON how they went; standard output is what it is without."""
    out, stages = tmp_path / "out", tmp_path / "stages"
    plain = run("build", AGENTS, tmp_path / "plain", "--polish", "0")
    ran = run("build", AGENTS, out, *OPTIONS)
    assert ran.out.replace(str(out), "") == plain.out.replace(str(tmp_path / "plain"), "")
    last = _summary(ran, 0)
    ledger = json.loads(run("stats", out, "--json").out)["ledger"]["total"]
    assert (last["command"], last["ledger"], last["unchanged"]) == ("build", ledger, False)
    assert (last["level"], last["path"]) == ("info", run("path", out).out.strip())
    assert last["generation"] == Path(last["path"]).name
    progress = [line for line in _lines(ran.err) if line["event"] == "progress"]
    assert {line["stage"] for line in progress if line["done"] == line["total"]} >= {"identify", "read", "pack"}
    assert _summary(run("build", AGENTS, out, *OPTIONS), 0)["unchanged"]
    assert _summary(run("verify", out, "--log-json"), 0)["ledger"] == ledger
    exported = run("export", out, "--log-json")
    assert _summary(exported, 0)["generation"] == last["generation"]
    assert exported.out == run("export", out).out
    assert _summary(run("ingest", AGENTS, stages, "--log-json"), 0)["generation"] is None
    assert _summary(run("dedup", stages, "--log-json"), 0)["command"] == "dedup"
    assert _summary(run("pack", stages, *OPTIONS), 0)["ledger"] == ledger


def test_quiet_and_json_say_nothing_but_failures(tmp_path: Path) -> None:
    """With both options cron hears of a build only where it fails, and then in JSON."""
    assert run("build", TINY / "text", tmp_path / "out", *OPTIONS, "--quiet") == Ran(0, "", "")
    assert run("verify", tmp_path / "out", "--quiet") == Ran(0, "", "")
    _summary(run("build", tmp_path / "none", tmp_path / "out", *OPTIONS, "--quiet"), 66)


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("build", BROKEN / "unknown-role.jsonl", "OUT"), 65, "DataError"),
        (("build", TINY / "text", "OUT", "--seq-len", "many"), 2, "UsageError"),
        (("verify", TINY / "text"), 66, "NoInputError"),
        (("build", TINY / "text", "OUT", "--no-such-option"), 2, "UsageError"),
    ],
)
def test_failures_are_objects(words: tuple[str | Path, ...], code: int, kind: str, tmp_path: Path) -> None:
    """A failure, the option parser's too, is an error object with the fields of the two lines it is otherwise."""
    given = [tmp_path / "out" if word == "OUT" else word for word in words]
    error, hint = run(*given).err.splitlines()
    last = _summary(run(*given, "--log-json"), code)
    found = last["error"]
    assert set(found) == {"kind", "where", "found", "expected", "hint", "code"}
    text = f"{found['where']}: {found['found']}" + (f"; {found['expected']}" if found["expected"] else "")
    assert (f"error: {text}", f"hint: {found['hint']}", found["kind"], found["code"]) == (error, hint, kind, code)
    assert (last["level"], last["message"]) == ("error", text)


def test_a_bug_is_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An exception that nobody expected is one line too, its traceback in it."""

    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("dagpack_cli.pipeline.publishing.publish_staged", fail)
    last = _summary(run("build", TINY / "text", tmp_path / "out", *OPTIONS), 1)
    assert last["error"]["kind"] == "ValueError"
    assert last["error"]["traceback"].startswith("Traceback")


def test_a_signal_is_the_last_line(tmp_path: Path) -> None:
    """A command that a signal ends, here while it waits, says so in its summary."""
    with lock_output(tmp_path / "out"):
        words = command("build", TINY / "text", tmp_path / "out", "--wait", "600", "--log-json")
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert json.loads(first)["event"] == "note"
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            lines = _lines(first + process.stderr.read())
        assert process.returncode == -signal.SIGTERM
    assert (lines[-1]["exit_code"], lines[-1]["signal"], lines[-1]["level"]) == (143, "SIGTERM", "error")
    assert "goes on" in lines[-1]["message"]


def test_warnings_of_libraries_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    """What a library warns of does not break a log of objects."""
    console = Console(log_json=True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = console.warn
        warnings.warn("two\nlines", stacklevel=1)
    console.end(0)
    assert [line["message"] for line in _lines(capsys.readouterr().err)] == ["two lines", "done"]


MODEL = ["--width", "8", "--heads", "2", "--feed-forward", "16", "--layers", "1", "--device", "cpu"]


def test_training_logs_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` tells in JSON how it went; on stdout are its steps, or its last lines where a folder has the steps."""
    assert run("build", TINY / "text", tmp_path / "out", *OPTIONS).code == 0
    words: list[str | Path] = ["train", "--shards", tmp_path / "out", *MODEL, "--steps", "2", "--log-json"]
    ran = run(*words)
    last, steps = _summary(ran, 0), [json.loads(line) for line in ran.out.splitlines()]
    assert (last["command"], last["level"], [step["step"] for step in steps]) == ("train", "info", [1, 2])
    lines = _lines(ran.err)
    assert [(line["done"], line["total"]) for line in lines if line["event"] == "progress"][-1] == (2, 2)
    assert next(line["message"] for line in lines if line["event"] == "result").startswith("2 steps, loss ")
    ran = run(*words, "--run", tmp_path / "run")
    assert ran.out.startswith("2 steps, loss ")
    assert _summary(ran, 0)["command"] == "train"
    ran = run(*words, "--run", tmp_path / "run")
    assert _summary(ran, ran.code)["error"]["code"] == ran.code != 0
    assert _summary(run(*words, "--resume"), 2)["error"]["where"] == "--resume"
    assert _summary(run(*words, "--heads", "3"), 2)["error"]["where"] == "--width"  # found when torch is there
    monkeypatch.setattr("dagpack_cli.training.loop.make_optimizer", lambda *_: 1 / 0)
    last = _summary(run(*words), 1)["error"]
    assert (last["kind"], last["code"], "Traceback" in last["traceback"]) == ("ZeroDivisionError", 1, True)


@pytest.mark.parametrize(("rank", "size", "speaks"), [("0", "2", True), ("3", "8", False), ("1", "1", True)])
@pytest.mark.parametrize("log_json", [False, True])
def test_one_process_of_several_speaks(
    rank: str,
    size: str,
    speaks: bool,
    log_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under torchrun the first process tells how a command goes; the others print nothing but errors."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    console = Console(log_json=log_json, command="train")
    console.leave_to_first()
    console.note("something")
    console.tell("something")
    console.progress("train", 1, 1)
    console.end(0)
    console.after_signal = "it goes on"
    console.stop(signal.SIGTERM)
    assert bool(capsys.readouterr().err) == speaks
    console.fail(UsageError("--steps", "none"))
    assert "--steps: none" in capsys.readouterr().err


def test_training_beside_another_process_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` leaves its last lines, too, to the first process."""
    from dagpack_cli import training

    def train(*_: Any, listener: Console, **__: Any) -> training.TrainResult:
        listener.note("something")
        return training.TrainResult([], nn.Identity())

    assert run("build", TINY / "text", tmp_path / "out", *OPTIONS).code == 0
    monkeypatch.setattr(training, "train", train)
    words: list[str | Path] = ["train", "--shards", tmp_path / "out", *MODEL]
    assert run(*words, "--run", tmp_path / "run").out == "no step was left to take\n"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    more: list[list[str | Path]] = [[], ["--run", tmp_path / "run"], ["--log-json"]]
    for options in more:
        assert run(*words, *options) == Ran(0, "", "")


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """A build whose standard error is full goes on and ends well."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("build", TINY / "text", tmp_path / "out", *OPTIONS),
            stdout=subprocess.DEVNULL,
            stderr=full,
            env=environment(),
            check=False,
        )
    assert done.returncode == 0
    assert run("verify", tmp_path / "out").code == 0
