"""Options that would do nothing are refused, ranges are named; and nobody waits for torch to hear of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import build, environment, run

from dagpack_cli.errors import UsageError
from dagpack_cli.ranges import check_ranges

SPLIT = ("--polish", "0")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output without a partition to validate on."""
    folder = tmp_path_factory.mktemp("usage") / "out"
    build(folder, *SPLIT)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--compression-level 9 --shard-format npy", "--compression-level: --shard-format npy is not compressed"),
        ("--polish 3 --layout walk", "--polish: --layout walk is not polished"),
        ("--polish 3 --layout packed", "--polish: --layout packed is not polished"),
        ("--seed 7", "--seed: there is no --val-fraction"),
        ("--min-shared 3 --layout packed --merge none", "--min-shared: nothing is merged"),
        ("--template-date 2026-01-02 --chat-template builtin", "--template-date: the built-in template"),
        ("--text-field body --format chat", "--text-field: does nothing with --format chat; --format jsonl-text"),
        ("--state-field grid --format arc-agi-3", "--state-field: does nothing with --format arc-agi-3"),
        ("--action-taken --format text", "--action-taken: does nothing with --format text"),
        ("--drop-transition self --format chat", "--drop-transition: does nothing with --format chat"),
        ("--predict action --format pi", "--predict: does nothing with --format pi"),
    ],
)
def test_options_of_a_build_that_would_do_nothing(words: str, message: str, tmp_path: Path) -> None:
    """Whoever gives one believes that it does something: exit 2, before anything is read."""
    ran = run("build", tmp_path / "no corpus", tmp_path / "out", *words.split())
    error, hint = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert error.startswith(f"error: {message}")
    assert "leave" in hint


@pytest.mark.parametrize(
    "words",
    [
        "--compression-level 1 --shard-format npy",
        "--polish 0 --layout packed",
        "--seed 0",
        "--seed 7 --val-fraction 0.5",
        "--predict action --format transitions",
        "--text-field body --format jsonl-text",
        "--state-field grid",
    ],
)
def test_options_that_do_something_or_ask_for_what_is(words: str, tmp_path: Path) -> None:
    """They are no usage errors: what is missing here is the corpus."""
    assert run("build", tmp_path / "no corpus", tmp_path / "out", *words.split()).code == 66


WRONG = {
    "train --shards OUT --parallel fsdp": (2, "--parallel fsdp: one process has nobody to share a model with"),
    "train --shards OUT --keep-checkpoints 2": (2, "--keep-checkpoints: no --run is given"),
    "train --shards OUT --checkpoint-every 2": (2, "--checkpoint-every: no --run is given"),
    "train --shards OUT --resume": (2, "--resume: no --run is given"),
    "train --shards OUT --model M": (2, "--model: no --run is given"),
    "train --shards OUT --epochs 2 --steps 3": (2, "--epochs: --steps is given too"),
    "train --shards OUT --validate-every 2": (2, "--validate-every: OUT has no partition val"),
    "train --shards OUT --lora 2": (2, "--lora: given without --model"),
    "train --shards OUT --model M --run R --width 8": (2, "--width: given with --model"),
    "train --shards OUT --epochs 0": (2, "--epochs: 0; at least 1"),
    "train --shards OUT --steps 0": (2, "--steps: 0; at least 1"),
    "train --shards OUT --learning-rate nan": (2, "--learning-rate: nan; a number above 0"),
    "train --shards OUT --warmup-steps -1": (2, "--warmup-steps: -1; at least 0"),
    "train --shards OUT --clip -1": (2, "--clip: -1.0; at least 0, which is none"),
    "train --shards OUT --heads 0": (2, "--heads: 0; at least 1"),
    "train --shards OUT --seed -1": (2, "--seed: -1; 0 to 9,223,372,036,854,775,807"),
    "train --shards NONE": (66, "NONE: no such directory"),
    "train --shards OUT --shards NONE": (66, "NONE: no such directory"),
    "train --shards OUT --model NONE --run R": (66, "--model NONE: no such directory"),
    "check OUT --model NONE": (66, "--model NONE: no such directory"),
    "check NONE": (66, "NONE: no such directory"),
    "check OUT --windows 0": (2, "--windows: 0; at least 1"),
    "check OUT --attention sdpa": (2, "--attention: given without --model"),
    "check OUT --partition val": (2, "--partition: val; one of train"),
}
SCRIPT = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
from dagpack_cli.cli import main

for line in sys.stdin:
    with redirect_stderr(StringIO()) as said:
        try:
            main(json.loads(line))
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, said.getvalue(), "torch" in sys.modules]))
"""


def test_nobody_waits_for_torch_to_hear_of_a_mistake(out: Path, tmp_path: Path) -> None:
    """What `train` and `check` can see without torch, they say without it."""
    lines = []
    for words in WRONG:
        places = {"OUT": str(out), "NONE": str(tmp_path / "none")}
        lines.append(json.dumps([places.get(word, word) for word in words.split()]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(lines), capture_output=True, text=True, env=environment()
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(WRONG), done.stderr
    for (words, (code, message)), answer in zip(WRONG.items(), answers, strict=True):
        said = answer[1].replace(str(out), "OUT").replace(str(tmp_path / "none"), "NONE")
        assert (answer[0], answer[2], said.count("\n")) == (code, False, 2), (words, answer)
        assert said.startswith(f"error: {message}"), (words, said)


def test_several_processes_may_share_a_model(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torchrun's environment --parallel fsdp is no mistake: here the next one is found."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = run("train", "--shards", out, "--parallel", "fsdp", "--validate-every", "2")
    assert ran.err.startswith("error: --validate-every: ")


def test_outputs_of_which_some_have_no_val(out: Path, tmp_path: Path) -> None:
    """Validation needs windows of every output; who gives one without is told that there is none."""
    pytest.importorskip("torch", reason="the extra train")
    build(tmp_path / "val", "--val-fraction", "0.5", *SPLIT)
    words = ["--width", "8", "--heads", "2", "--feed-forward", "16", "--layers", "1", "--device", "cpu", "--steps", "1"]
    ran = run("train", "--shards", tmp_path / "val", "--shards", out, *words)
    assert ran.code == 0
    assert ran.err.startswith(f"note: no validation: {out} has no partition val")
    assert json.loads(ran.out)["val_loss"] is None
    ran = run("train", "--shards", tmp_path / "val", *words)
    assert "note" not in ran.err
    assert json.loads(ran.out)["val_loss"] is not None


def test_ranges() -> None:
    """NaN and infinity are in no range but that of --clip, which infinity leaves without effect as 0 does."""
    check_ranges({"clip": float("inf"), "steps": None, "unknown": -1, "final_fraction": 1})
    for name in ("learning_rate", "weight_decay", "lora_alpha", "clip", "final_fraction"):
        for value in (float("nan"), float("-inf"), -1.0):
            with pytest.raises(UsageError):
                check_ranges({name: value})
    for name in ("learning_rate", "weight_decay", "lora_alpha", "final_fraction"):
        with pytest.raises(UsageError):
            check_ranges({name: float("inf")})
