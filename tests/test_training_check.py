"""The certificate passes where windows are exact, and fails where anything about one is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import write_examples
from commands import build, run
from exactness import build_layout, random_examples
from oracle import Example

from dagpack_cli.errors import MismatchError, UsageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.training import (
    Checked,
    CheckOptions,
    DecoderConfig,
    LoraOptions,
    PackedWindows,
    PretrainedOptions,
    check,
    check_windows,
    collate,
)
from dagpack_cli.training.own_examples import OwnExample, own_examples

CONFIG = DecoderConfig(vocab_size=266, width=16, heads=2, feed_forward=16, layers=2)


@pytest.fixture
def larger_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the built-in decoder weights that are large enough for attention to matter."""
    make = check._model

    def model(*arguments: Any) -> Any:
        lm = make(*arguments)
        with torch.no_grad():
            for parameter in lm.module.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(15)
        return lm

    monkeypatch.setattr(check, "_model", model)


def checked(windows: PackedWindows, /, model: Any = CONFIG, **options: Any) -> list[Checked]:
    """Check all windows."""
    chosen: dict[str, Any] = {"windows": len(windows), "device": "cpu"} | options
    return list(check_windows(windows, model, CheckOptions(**chosen)))


@pytest.mark.parametrize("layout", ["padded", "packed", "best-fit", "dag"])
@pytest.mark.usefixtures("larger_weights")
def test_exact_windows_pass(tmp_path: Path, layout: str) -> None:
    """Duplicates, prefixes of one another, masks, weights: in every layout, every window is its examples."""
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        windows, _, _ = build_layout(folder, random_examples(seed), layout, 12)
        found = checked(windows)
        assert sorted(one.window for one in found) == list(range(len(windows)))
        assert all(one.passed for one in found)
        assert max(one.worst for one in found) < 1e-12
        if layout == "padded":
            assert all(one.control is None for one in found)


@pytest.mark.parametrize("on_long", ["split", "truncate", "drop"])
@pytest.mark.parametrize("layout", ["dag", "best-fit"])
@pytest.mark.usefixtures("larger_weights")
def test_pieces_of_long_examples_pass(tmp_path: Path, layout: str, on_long: str) -> None:
    """A piece is run alone from its first token; also one that repeats itself; what is dropped is in no window."""
    examples = [
        *random_examples(3),
        Example((7,) * 17, frozenset(range(1, 17)), 2.0),
        Example((7,) * 12 + (9,), frozenset({3, 9, 12}), 1.0),
    ]
    write_examples(tmp_path / "corpus", examples)
    options = ("--seq-len", "4", "--layout", layout, "--on-long", on_long)
    build(tmp_path / "out", *options, corpus=tmp_path / "corpus")
    found = checked(PackedWindows(tmp_path / "out"))
    assert all(one.passed for one in found)


def damage(name: str) -> Callable[[dict[str, Any]], None]:
    """Return what spoils one number of a batch of one window."""

    def spoil(batch: dict[str, Any]) -> None:
        rows = int(batch["num_rows"])
        parents = batch["parents"][0, :rows]
        branch = int(np.flatnonzero((parents != torch.arange(-1, rows - 1)).numpy())[0])
        trained = int(batch["weights"][0].nonzero()[-1])
        match name:
            case "mask":  # the row before the branch is seen by it
                batch["subtree_ends"][0, branch - 1] = branch + 1
            case "hidden":  # a row no longer sees its parent
                child = int((parents >= 0).nonzero()[-1])
                batch["subtree_ends"][0, int(parents[child])] = child
            case "depth":
                batch["position_ids"][0, branch] += 1
            case "weight":
                batch["weights"][0, trained] *= 1.001
            case "target":
                batch["targets"][0, trained] = (batch["targets"][0, trained] + 1) % 266
            case "input":
                batch["input_ids"][0, trained] = (batch["input_ids"][0, trained] + 1) % 266

    return spoil


@pytest.mark.parametrize("name", ["mask", "hidden", "depth", "weight", "target", "input"])
@pytest.mark.usefixtures("larger_weights")
def test_one_wrong_number_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A mask, a depth, a weight, a target, an input: any one that is wrong is found, by a thousand times the limit."""
    windows, _, _ = build_layout(tmp_path, [*random_examples(5), *random_examples(6)], "dag", 40)
    spoil = damage(name)

    def spoiled(*arguments: Any) -> dict[str, Any]:
        batch = collate(*arguments)
        spoil(batch)
        return batch

    assert all(one.passed for one in checked(windows))
    monkeypatch.setattr(check, "collate", spoiled)
    found = checked(windows)
    assert not any(one.passed for one in found)
    assert min(one.worst for one in found) > 1e-6


@pytest.mark.usefixtures("larger_weights")
def test_a_lost_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that a window should train and does not have at all: its rows are missing."""
    windows, _, _ = build_layout(tmp_path, random_examples(5), "dag", 40)

    def more(path: Path, manifest: Manifest, part: str, chosen: list[int]) -> Any:
        found = own_examples(path, manifest, part, chosen)
        lost = OwnExample(np.array([250, 251, 252], dtype=np.int32), np.ones(2), 1, 2)
        return {window: [*examples, lost] for window, examples in found.items()}

    monkeypatch.setattr(check, "own_examples", more)
    (one,) = checked(windows)
    assert (one.missing, one.passed) == (2, False)


@pytest.mark.usefixtures("larger_weights")
def test_a_model_that_ignores_its_mask_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of chains pass whatever the mask does; then nothing is proved, and the control says so."""
    windows, _, _ = build_layout(tmp_path, random_examples(5), "dag", 40)
    monkeypatch.setattr(check, "_control", lambda *_: 0.0)
    (one,) = checked(windows)
    assert one.worst < 1e-12
    assert not one.passed


@pytest.mark.usefixtures("larger_weights")
def test_weights_beyond_float32_have_their_own_limit(tmp_path: Path) -> None:
    """Weights are stored in float32: a third is a third to seven digits, and the limit follows."""
    examples = [Example((1, 2, 3, number), frozenset({1, 2, 3}), 1 / 3) for number in range(4, 9)]
    windows, _, _ = build_layout(tmp_path, examples, "dag", 40)
    (one,) = checked(windows)
    assert one.passed
    assert one.tolerance == 1e-6
    assert 1e-9 < one.worst < 1e-7


@pytest.mark.usefixtures("larger_weights")
def test_windows_are_chosen_by_the_seed_and_branched_ones_first(tmp_path: Path) -> None:
    """A few windows of many: the same for a seed, others for another; those that need a mask before others."""
    examples = [Example((number, number + 1, 3), frozenset({1, 2}), 1.0) for number in range(40)]
    examples += [Example((200, 201, last), frozenset({1, 2}), 1.0) for last in (3, 4)]
    windows, _, _ = build_layout(tmp_path, examples, "dag", 3)
    assert len(windows) == 41
    first, again, other = (checked(windows, CONFIG, windows=3, seed=seed) for seed in (0, 0, 1))
    assert [one.window for one in first] == [one.window for one in again]
    assert {one.window for one in first} != {one.window for one in other}
    assert len(first) == 3
    assert first[0].control is not None
    assert [one.control for one in first[1:]] == [None, None]


@pytest.mark.parametrize("weight", [2.0, -2.0])
def test_a_wrong_denominator_fails(tmp_path: Path, weight: float) -> None:
    """What the loss is divided by: the sum of weights, or of supervised pairs where some weights are negative."""
    examples = [Example((1, 2, 3, number), frozenset({2, 3}), weight if number % 2 else 1.0) for number in range(4, 9)]
    write_examples(tmp_path / "corpus", [*examples, examples[0]])
    generation = build(tmp_path / "out", "--shard-format", "npy", corpus=tmp_path / "corpus")
    windows = PackedWindows(tmp_path / "out")
    (one,) = checked(windows)
    assert (one.passed, one.denominator) == (True, 0)
    assert windows[0]["denominator"] == (12 if weight < 0 else 16)
    path = next(generation.rglob("shards/**/num_supervised.npy"))
    np.save(path, np.load(path) * 10)
    (one,) = checked(PackedWindows(tmp_path / "out"))
    assert (one.passed, one.denominator) == ((False, 9.0) if weight < 0 else (True, 0))


def test_windows_that_are_no_mini_batches_are_refused(tmp_path: Path) -> None:
    """The walk trains a row once for everybody: there is nothing to hold a window against."""
    windows, _, _ = build_layout(tmp_path, random_examples(1), "walk", 12)
    with pytest.raises(MismatchError, match="layout walk") as caught:
        checked(windows)
    assert "--layout dag" in caught.value.advice
    build(tmp_path / "state", "--merge", "state", corpus=tmp_path / "corpus")
    with pytest.raises(MismatchError, match="merge state") as caught:
        checked(PackedWindows(tmp_path / "state"))
    assert "--merge prefix" in caught.value.advice
    with pytest.raises(UsageError, match="2 outputs"):
        checked(PackedWindows(tmp_path / "walk", tmp_path / "walk"))


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "gemma3", "mistral", "gpt2"])
def test_models_of_hugging_face_pass(tmp_path: Path, name: str) -> None:
    """Dense, with experts, with windows in some layers or in all, with learned positions."""
    models = pytest.importorskip("huggingface_models", reason="the extra hf")
    windows, _, _ = build_layout(tmp_path, random_examples(5), "dag", 40)
    models.tiny_model(name, "sdpa").save_pretrained(tmp_path / "model")
    (one,) = checked(windows, PretrainedOptions(path=str(tmp_path / "model")))
    assert one.passed
    assert one.worst < 1e-11
    (one,) = checked(windows, PretrainedOptions(path=str(tmp_path / "model")), precision="float32")
    assert one.passed
    (one,) = checked(windows, PretrainedOptions(path=str(tmp_path / "model"), lora=LoraOptions(rank=2)))
    assert one.passed


def test_the_command(tmp_path: Path) -> None:
    """Lines for people, JSON for programs, and an error with a way on where a shard is wrong."""
    write_examples(tmp_path / "corpus", [*random_examples(5), *random_examples(6)])
    out = tmp_path / "out"
    generation = build(out, "--seq-len", "40", "--shard-format", "npy", corpus=tmp_path / "corpus")
    ran = run("check", out, "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = run("check", out)
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("exact: 1 window, ")
    ran = run("check", out, "--json")
    assert json.loads(ran.out)["ok"] is True
    depths = next(generation.rglob("shards/**/depths.npy"))
    column = np.load(depths)
    column[0, 2] += 1
    np.save(depths, column)
    ran = run("check", out)
    assert ran.code == 78
    assert f"error: window 0 of {out}: " in ran.err
    assert "hint: dagpack verify" in ran.err
    ran = run("check", out, "--json", "--quiet")
    assert ran.code == 78
    assert json.loads(ran.out)["windows"][0]["ok"] is False
    assert run("check", out, "--windows", "0").code == 2
    assert run("check", out, "--attention", "sdpa").code == 2
    assert run("check", out, "--partition", "val").code == 2
