"""The training loop: its loss, its steps and their log, and that a stopped run ends as if it had not stopped."""

from __future__ import annotations

import io
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import write_examples
from commands import TINY, Ran, build, environment, run, run_process
from oracle import Example
from torch import Tensor

from dagpack_cli.errors import (
    DagpackError,
    DamageError,
    DataError,
    MismatchError,
    NoInputError,
    OutputError,
    UsageError,
)
from dagpack_cli.training import (
    Decoder,
    DecoderConfig,
    PackedLoader,
    PackedWindows,
    StepReport,
    TrainOptions,
    TrainResult,
    causal_lm,
    collate,
    loop,
    summary,
    train,
    tree_bool_mask,
    weighted_loss,
)
from dagpack_cli.training.checkpoints import newest_checkpoint

SEQ_LEN = 8
OPTIONS = TrainOptions(device="cpu", precision="float64", learning_rate=1e-2, batch_size=2)
SIZES = ("--width", "8", "--heads", "2", "--feed-forward", "16", "--layers", "1")
FAST = (*SIZES, "--batch-size", "2", "--learning-rate", "0.01", "--device", "cpu", "--quiet")


def publish(folder: Path, examples: Sequence[Example], *options: str) -> Path:
    """Build examples with one window of at most 8 rows each; return the output directory."""
    write_examples(folder / "corpus", examples)
    build(folder / "out", "--seq-len", str(SEQ_LEN), "--layout", "padded", *options, corpus=folder / "corpus")
    return folder / "out"


def examples(count: int, *, silent: int = 0) -> list[Example]:
    """Return examples of different lengths, weights and supervision; the last ones train nothing."""
    found = []
    for number in range(count):
        tokens = (number % 5, 5, 6 + number % 3, *range(9, 10 + number % 4))
        trained = frozenset(range(1 + number % 2, len(tokens)))
        weight = 0.0 if number >= count - silent else 1.0 + number % 3
        found.append(Example(tokens, trained, weight, str(number)))
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with eleven windows to train on and some to validate on, which no test changes."""
    published = publish(tmp_path_factory.mktemp("loop"), examples(16), "--val-fraction", "0.3", "--seed", "3")
    assert len(PackedWindows(published)) == 11
    return published


@pytest.fixture
def windows(out: Path) -> PackedWindows:
    """The windows to train on."""
    return PackedWindows(out)


def config_of(windows: PackedWindows, **sizes: int) -> DecoderConfig:
    """Return a decoder as small as they come."""
    return DecoderConfig(
        vocab_size=windows.vocab_size, **({"width": 8, "heads": 2, "feed_forward": 16, "layers": 1} | sizes)
    )


def parameters_of(result: TrainResult) -> dict[str, Tensor]:
    """Return the trained parameters by name."""
    return dict(result.model.state_dict())


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Tell whether two sets of tensors are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run, without how long they took."""
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


# -- the loss


def logits_of(rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return logits over five tokens that want gradients, and targets."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(1, rows, 5, generator=generator, dtype=torch.float64).to(dtype)
    return logits.requires_grad_(), torch.arange(rows)[None] % 5


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_loss_has_at_least_float32(dtype: torch.dtype, result: torch.dtype) -> None:
    """Half precision is widened before the softmax; the value is that of its rounded logits."""
    logits, targets = logits_of(40, dtype)
    weights = torch.linspace(0, 2, 40)[None]
    loss = weighted_loss(logits, targets, weights)
    assert loss.dtype == result
    exact = weighted_loss(logits.detach().double(), targets, weights)
    assert loss.item() == pytest.approx(float(exact), rel=2e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_loss_is_divided_by_what_it_is_given() -> None:
    """A denominator, a number or a tensor, replaces the sum of the weights."""
    wanted, targets = logits_of(4)
    logits = wanted.detach()
    weights = torch.tensor([[1.0, 0.0, 2.0, 3.0]])
    entropy = -torch.log_softmax(logits, -1)[0, torch.arange(4), targets[0]]
    total = float((entropy * weights[0].double()).sum())
    assert float(weighted_loss(logits, targets, weights)) == pytest.approx(total / 6, rel=1e-14)
    assert float(weighted_loss(logits, targets, weights, 2.5)) == pytest.approx(total / 2.5, rel=1e-14)
    assert float(weighted_loss(logits, targets, weights, torch.tensor(2.5))) == pytest.approx(total / 2.5, rel=1e-14)
    assert float(weighted_loss(logits[0, 2], targets[0, 2], weights[0, 2])) == pytest.approx(float(entropy[2]))


@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]])
def test_a_zero_sum_needs_a_denominator(weights: list[float]) -> None:
    """Weights that sum to 0 are no mean: an error without a denominator, finite with one."""
    wanted, targets = logits_of(3)
    logits = wanted.detach()
    with pytest.raises(DataError, match="weights: they sum to 0") as caught:
        weighted_loss(logits, targets, torch.tensor([weights]))
    assert "denominator" in caught.value.advice
    assert math.isfinite(float(weighted_loss(logits, targets, torch.tensor([weights]), 3.0)))


@pytest.mark.parametrize("target", [-100, 10**6])
def test_a_masked_micro_batch_adds_nothing(target: int) -> None:
    """Rows of weight 0 add exactly 0 and a gradient of exactly 0, whatever their logits and targets hold."""
    logits, _ = logits_of(3)
    poisoned = logits.detach().clone()
    poisoned[0, 1] = math.nan
    poisoned[0, 2] = math.inf
    poisoned.requires_grad_()
    loss = weighted_loss(poisoned, torch.full((1, 3), target), torch.zeros(1, 3), 7.0)
    assert loss.item() == 0.0
    loss.backward()  # type: ignore[no-untyped-call]
    assert poisoned.grad is not None
    assert torch.equal(poisoned.grad, torch.zeros_like(poisoned))


def test_micro_batches_are_one_batch() -> None:
    """Micro-batches of one row and of three, and a masked one, have the gradient of the batch of four."""
    logits, targets = logits_of(6)
    weights = torch.tensor([[2.0, 0.5, 1.0, 3.0, 0.0, 0.0]], dtype=torch.float64)
    whole = weighted_loss(logits, targets, weights)
    (expected,) = torch.autograd.grad(whole, logits)
    parts = [
        weighted_loss(logits[:, low:high], targets[:, low:high], weights[:, low:high], float(weights.sum()))
        for low, high in ((0, 1), (1, 4), (4, 6))
    ]
    gradients = [torch.autograd.grad(part, logits)[0] for part in parts]
    assert float(sum(part.detach() for part in parts)) == pytest.approx(float(whole.detach()), rel=1e-14)
    assert torch.allclose(torch.stack(gradients).sum(0), expected, rtol=1e-13, atol=0)
    means = [
        weighted_loss(logits[:, low:high], targets[:, low:high], weights[:, low:high]) for low, high in [(0, 1), (1, 4)]
    ]
    assert abs(float(sum(mean.detach() for mean in means)) / 2 - float(whole.detach())) > 1e-3


# -- the decoder


def test_decoder_size() -> None:
    """The smallest decoder of the tests has exactly 3,448 parameters; so has no part been added or tied apart."""
    config = DecoderConfig(vocab_size=266, width=8, heads=2, feed_forward=16, layers=2)
    assert sum(parameter.numel() for parameter in Decoder(config).parameters()) == 3448
    assert 3448 == 266 * 8 + 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"width": 10}, "--width: 10 with 2 heads"), ({"layers": 0}, "a size below 1"), ({"heads": 0}, "a size below 1")],
)
def test_sizes_that_do_not_fit_are_refused(windows: PackedWindows, sizes: dict[str, int], message: str) -> None:
    """Widths that rotary pairs cannot fill, and sizes below 1, are usage errors."""
    with pytest.raises(UsageError, match=message):
        config_of(windows, **sizes)


# -- steps


def test_accumulating_is_a_larger_batch(windows: PackedWindows) -> None:
    """Two batches of two a step end in the parameters of one batch of four, also where an epoch ends unevenly."""
    options = replace(OPTIONS, epochs=3)
    twice = train(windows, config_of(windows), replace(options, accumulate=2))
    once = train(windows, config_of(windows), replace(options, batch_size=4))
    assert len(twice.steps) == len(once.steps) == 9
    assert [step.epoch for step in once.steps] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for left, right in zip(twice.steps, once.steps, strict=True):
        assert (left.denominator, left.rows, left.pairs) == (right.denominator, right.rows, right.pairs)
        assert left.loss == pytest.approx(right.loss, rel=1e-12)
    for name, parameter in parameters_of(twice).items():
        assert torch.allclose(parameter, parameters_of(once)[name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_loss_falls(windows: PackedWindows, precision: Any) -> None:
    """A small corpus is learnt: the loss starts at that of a uniform guess and falls well below it."""
    result = train(windows, config_of(windows), replace(OPTIONS, precision=precision, epochs=12, learning_rate=3e-2))
    losses = [step.loss for step in result.steps]
    assert losses[0] == pytest.approx(math.log(windows.vocab_size), abs=0.05)
    assert losses[-1] is not None
    assert losses[-1] < 1.2


def test_first_loss_and_totals_are_those_of_the_windows(tmp_path: Path) -> None:
    """A step reports the loss before its update, and counts the rows, owned rows and pairs of its windows."""
    windows = PackedWindows(publish(tmp_path, examples(30), "--layout", "dag"))
    result = train(windows, config_of(windows), replace(OPTIONS, batch_size=4, seed=3))
    totals = [sum(getattr(step, name) for step in result.steps) for name in ("rows", "distinct_pairs", "pairs")]
    assert totals[0] > totals[1]
    assert totals[2] > totals[1]
    torch.manual_seed(3)
    model = Decoder(config_of(windows)).double()
    for step, batch in zip(result.steps, PackedLoader(windows, 4, seed=3), strict=True):
        if step.step == 1:
            mask = tree_bool_mask(batch["subtree_ends"])
            logits = model(batch["input_ids"], batch["position_ids"], mask).detach()
            loss = weighted_loss(logits, batch["targets"], batch["weights"])
            assert step.loss == pytest.approx(float(loss), rel=1e-12)
        chosen = [windows[int(number)] for number in batch["window"]]
        assert step.rows == sum(len(window["inputs"]) for window in chosen)
        assert step.distinct_pairs == sum(int(window["owned"].sum()) for window in chosen)
        assert step.pairs == sum(int(window["counts"].sum()) for window in chosen)
        assert step.denominator == sum(float(window["weights"].sum()) for window in chosen)


def test_val_loss_is_the_whole_partition(out: Path, windows: PackedWindows) -> None:
    """The validation loss is the weighted mean over every val window, looked at when asked and at the end."""
    val = PackedWindows(out, partition="val")
    assert len(val) > 3
    result = train(windows, config_of(windows), replace(OPTIONS, steps=5, validate_every=2), val=val)
    assert [step.val_loss is not None for step in result.steps] == [False, True, False, True, True]
    total = weight = 0.0
    for number in range(len(val)):
        batch = collate([val[number]])
        logits = result.model(batch["input_ids"], batch["position_ids"], tree_bool_mask(batch["subtree_ends"]))
        entropy = -torch.log_softmax(logits.detach(), -1)[0, torch.arange(logits.shape[1]), batch["targets"][0]]
        total += float((entropy * batch["weights"][0]).sum())
        weight += float(batch["weights"].sum())
    assert result.steps[-1].val_loss == pytest.approx(total / weight, rel=1e-12)
    plain = train(windows, config_of(windows), replace(OPTIONS, steps=5))
    assert same(parameters_of(plain), parameters_of(result))
    assert all(step.val_loss is None for step in plain.steps)


def test_a_step_that_trains_nothing_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose denominator is 0 changes no parameter, has no loss, and is noted; the run goes on."""
    windows = PackedWindows(publish(tmp_path, examples(6, silent=2), "--no-prune"))
    assert [window for window in range(6) if windows[window]["denominator"] == 0] == [4, 5]
    told: list[str] = []
    states: list[dict[str, Tensor]] = []
    listener = Listener(note=told.append)
    listener.heard = lambda _: states.append({name: tensor.clone() for name, tensor in listener.state().items()})
    listener.watch(monkeypatch)
    result = train(windows, config_of(windows), replace(OPTIONS, batch_size=1), listener=listener)
    skipped = [step.step for step in result.steps if step.loss is None]
    assert len(skipped) == 2
    assert told == [f"step {step} is skipped: nothing in it trains" for step in skipped]
    for step, report in enumerate(result.steps):
        assert (report.denominator == 0) == (report.loss is None)
        if step > 0:
            assert same(states[step], states[step - 1]) == (report.loss is None)
    assert all(math.isfinite(float(tensor.sum())) for tensor in states[-1].values())
    both = train(windows, config_of(windows), replace(OPTIONS, batch_size=1, accumulate=6))
    assert both.steps[0].denominator == sum(step.denominator for step in result.steps)
    assert both.steps[0].loss is not None


class Listener:
    """Hears progress and notes, and can look at the model that is being trained."""

    def __init__(self, note: Callable[[str], object] = str, heard: Callable[[int], object] = bool) -> None:
        self._note, self.heard = note, heard
        self.done: list[tuple[str, int, int]] = []
        self._model: Decoder | None = None

    def progress(self, stage: str, done: int, total: int) -> None:
        """Hear that a step is finished."""
        self.done.append((stage, done, total))
        self.heard(done)

    def note(self, text: str) -> None:
        """Hear something a person should know."""
        self._note(text)

    def state(self) -> dict[str, Tensor]:
        """Return the parameters as they are now."""
        assert self._model is not None
        return dict(self._model.state_dict())

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Learn of the next decoder that is made."""

        def make(config: DecoderConfig) -> Decoder:
            self._model = Decoder(config)
            return self._model

        patch.setattr(causal_lm, "Decoder", make)


def test_learning_rate_rises_and_falls(windows: PackedWindows) -> None:
    """The rate rises in a line over the warm-up and falls in a half cosine towards its last fraction."""
    options = replace(OPTIONS, steps=12, warmup_steps=4, learning_rate=0.08, final_fraction=0.25)
    rates = [step.learning_rate for step in train(windows, config_of(windows), options).steps]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.08])
    assert rates[8] == pytest.approx(0.08 * (1 + 0.25) / 2)
    expected = [0.02 + 0.06 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert rates[4:] == pytest.approx(expected)
    assert rates[-1] > 0.02
    assert [step.learning_rate for step in train(windows, config_of(windows), replace(OPTIONS, steps=2)).steps] == [
        pytest.approx(0.01),
        pytest.approx(0.01 * 0.55),
    ]


def test_gradients_are_clipped(windows: PackedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm that is reported is that before clipping; the update has at most the limit, or all of it with 0."""

    def moved(clip: float) -> tuple[float, float]:
        options = replace(OPTIONS, steps=1, clip=clip, learning_rate=0.5)
        monkeypatch.setattr(loop, "make_optimizer", lambda model, _: torch.optim.SGD(model.parameters(), lr=1.0))
        result = train(windows, config_of(windows), options)
        torch.manual_seed(options.seed)
        start = Decoder(config_of(windows)).double().state_dict()
        squares = [float((start[name] - value).square().sum()) for name, value in parameters_of(result).items()]
        return result.steps[0].gradient_norm, math.sqrt(sum(squares)) / 0.5

    norm, length = moved(0.0)
    assert norm == pytest.approx(length, rel=1e-6)
    assert norm > 0.3
    for clip, expected in ((1e-3, 1e-3), (100.0, norm)):
        reported, length = moved(clip)
        assert (reported, length) == pytest.approx((norm, expected), rel=1e-2)


def test_weight_decay_spares_vectors(windows: PackedWindows) -> None:
    """Decay shrinks every matrix by the rate times it, and no scale of a norm."""
    plain, decayed = (
        parameters_of(train(windows, config_of(windows), replace(OPTIONS, steps=1, weight_decay=decay)))
        for decay in (0.0, 0.5)
    )
    torch.manual_seed(OPTIONS.seed)
    for name, start in Decoder(config_of(windows)).double().state_dict().items():
        difference = plain[name] - decayed[name]
        expected = start * 0.5 * 0.01 if start.ndim > 1 else torch.zeros_like(start)
        assert torch.allclose(difference, expected, rtol=1e-9, atol=1e-15), name


def test_seeds(windows: PackedWindows) -> None:
    """The same seed gives the same bits twice, with workers too; another gives another order and other weights."""
    changes: list[dict[str, Any]] = [{}, {}, {"workers": 1}, {"seed": 1}]
    first, again, ahead, other = (
        train(windows, config_of(windows), replace(OPTIONS, epochs=2, **changed)) for changed in changes
    )
    for result in (again, ahead):
        assert same(parameters_of(first), parameters_of(result))
        assert [replace(step, seconds=0) for step in first.steps] == [replace(step, seconds=0) for step in result.steps]
    assert not same(parameters_of(first), parameters_of(other))
    assert [step.rows for step in first.steps] != [step.rows for step in other.steps]


# -- what is written


def test_log_holds_the_reports(windows: PackedWindows, out: Path, tmp_path: Path) -> None:
    """Every line of ``steps.jsonl``, and of a log given, is one report; progress hears every step."""
    log, listener = io.StringIO(), Listener()
    result = train(
        windows,
        config_of(windows),
        replace(OPTIONS, steps=7, checkpoint_every=3),
        val=PackedWindows(out, partition="val"),
        run=tmp_path / "runs" / "first",
        log=log,
        listener=listener,
    )
    text = (tmp_path / "runs" / "first" / "steps.jsonl").read_text()
    assert text == log.getvalue()
    assert [StepReport(**json.loads(line)) for line in text.splitlines()] == result.steps
    assert [step.step for step in result.steps] == list(range(1, 8))
    assert [step.epoch for step in result.steps] == [0] * 6 + [1]
    assert listener.done == [("train", step, 7) for step in range(1, 8)]
    names = sorted(path.name for path in (tmp_path / "runs" / "first").iterdir())
    shown = ["loss.png", "steps.jsonl"] + ["tensorboard"] * (find_spec("tensorboard") is not None)
    assert names == [f"checkpoint-{step:08d}.pt" for step in (3, 6, 7)] + shown


def report(step: int, **changed: Any) -> StepReport:
    """Return a step of two seconds."""
    values: dict[str, Any] = {"loss": 1.5, "learning_rate": 0.1, "gradient_norm": 1.0, "denominator": 4.0, "rows": 3000}
    values |= {"distinct_pairs": 2000, "pairs": 9000, "seconds": 2.0, "epoch": 0} | changed
    return StepReport(step=step, **values)


def test_summary(windows: PackedWindows) -> None:
    """The last lines say how the loss went, how fast, three ways, and what validation found."""
    model = Decoder(config_of(windows))
    steps = [report(1, loss=None), report(2, loss=2.0), report(3, loss=1.25), report(4, loss=None, rows=1000)]
    rates = "a second: 1,250 rows computed, 1,000 distinct pairs trained, standing for 4,500 pairs of the corpus"
    assert summary(TrainResult(steps, model)) == f"4 steps, loss 2.0000 to 1.2500 nats\n{rates}"
    looked = [report(0, val_loss=9.0), *steps, report(5, loss=1.0, rows=2500, val_loss=1.75)]
    assert summary(TrainResult(looked, model)).splitlines()[-1] == "val loss 1.7500 nats after step 5"
    assert "a second: 6,000 rows computed, 4,000 distinct" in summary(TrainResult([report(1, seconds=0.5)], model))
    assert summary(TrainResult([], model)) == "no step was left to take"


# -- stopping and going on


class Stopped(Exception):
    """What ends a run from outside."""


@pytest.mark.parametrize(("stop", "every"), [(1, 1), (5, 2), (6, 3), (7, 5), (12, 4), (13, 1)])
def test_a_resumed_run_is_the_same_run(
    windows: PackedWindows, out: Path, tmp_path: Path, stop: int, every: int
) -> None:
    """Stopped after any step, within an epoch or at its end, a run resumes to the same bits and the same log."""
    val = PackedWindows(out, partition="val")
    options = replace(OPTIONS, steps=14, accumulate=1, warmup_steps=3, validate_every=4, checkpoint_every=every)
    whole = train(windows, config_of(windows), options, val=val, run=tmp_path / "whole")

    def end(step: int) -> None:
        if step == stop:
            raise Stopped

    with pytest.raises(Stopped):
        train(windows, config_of(windows), options, val=val, run=tmp_path / "cut", listener=Listener(heard=end))
    other = replace(options, workers=1, checkpoint_every=0)
    resumed = train(windows, config_of(windows), other, val=val, run=tmp_path / "cut", resume=True)
    assert [step.step for step in resumed.steps] == list(range(stop // every * every + 1, 15))
    assert same(parameters_of(whole), parameters_of(resumed))
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")
    done = train(windows, config_of(windows), options, run=tmp_path / "cut", resume=True)
    assert done.steps == []
    assert same(parameters_of(whole), parameters_of(done))


KILLED = """
import os, signal, sys
from dagpack_cli.cli import main

calls = 0

def fsync(descriptor):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = fsync
main(sys.argv[1:])
"""


def test_a_killed_run_goes_on(out: Path, tmp_path: Path) -> None:
    """Killed while it writes a checkpoint, a run goes on from the one before and ends in the same bits."""
    options = ("--shards", str(out), *FAST, "--steps", "9", "--checkpoint-every", "2")
    assert run("train", *options, "--run", tmp_path / "whole").code == 0
    cut = ("train", *options, "--run", str(tmp_path / "cut"))
    assert run_process([sys.executable, "-c", KILLED, *cut]).code == -signal.SIGKILL
    assert len(log_of(tmp_path / "cut")) == 6
    assert newest_checkpoint(tmp_path / "cut").name == "checkpoint-00000004.pt"
    with (tmp_path / "cut" / "steps.jsonl").open("a") as file:
        file.write('{"step": 7, "epo')
    assert run(*cut, "--resume") == Ran(0, "", "")
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "cut")
    states = [
        torch.load(tmp_path / name / "checkpoint-00000009.pt", weights_only=True)["model"] for name in ("whole", "cut")
    ]
    assert same(*states)
    assert not list((tmp_path / "cut").glob("*.partial"))


@pytest.fixture(scope="module")
def finished(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with a checkpoint each, which no test changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    windows = PackedWindows(out)
    train(windows, config_of(windows), replace(OPTIONS, steps=3, checkpoint_every=1), run=folder)
    return folder


@pytest.mark.parametrize(
    ("changed", "sizes", "message"),
    [
        ({}, {"width": 16}, "width 8; 16, as given now"),
        ({}, {"layers": 2}, "layers 1; 2"),
        ({"seed": 1}, {}, "seed 0; 1"),
        ({"batch_size": 3}, {}, "windows_per_step 2; 3"),
        ({"accumulate": 2}, {}, "windows_per_step 2; 4"),
        ({"steps": 4}, {}, "steps 3; 4"),
        ({"precision": "float32"}, {}, "precision float64; float32"),
        ({"learning_rate": 0.1}, {}, "learning_rate 0.01; 0.1"),
        ({"weight_decay": 0.2}, {}, "weight_decay 0.1; 0.2"),
        ({"warmup_steps": 1}, {}, "warmup_steps 0; 1"),
        ({"clip": 0.0}, {}, "clip 1.0; 0.0"),
        ({"max_cells": 8}, {}, "windows_per_step 2; 1"),
    ],
)
def test_another_run_is_not_resumed(
    windows: PackedWindows, finished: Path, changed: dict[str, Any], sizes: dict[str, int], message: str
) -> None:
    """Whatever would make the rest of a run differ from its beginning is refused, with both values."""
    options = replace(OPTIONS, **({"steps": 3} | changed))
    before = (finished / "steps.jsonl").read_text()
    with pytest.raises(MismatchError, match=message):
        train(windows, config_of(windows, **sizes), options, run=finished, resume=True)
    assert (finished / "steps.jsonl").read_text() == before


def test_other_shards_are_not_resumed(windows: PackedWindows, finished: Path, tmp_path: Path) -> None:
    """A run goes on with the shards it began with, or not at all."""
    other = PackedWindows(publish(tmp_path, examples(12)))
    assert other.vocab_size == windows.vocab_size
    with pytest.raises(MismatchError, match="fingerprints"):
        train(other, config_of(other), replace(OPTIONS, steps=3), run=finished, resume=True)


class Touching:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def garbage(kind: str, content: bytes, touched: Path) -> bytes:
    """Return what may stand where a checkpoint should."""
    file = io.BytesIO()
    if kind == "another":
        torch.save({"model": {}}, file)
    elif kind == "tensor":
        torch.save(torch.zeros(3), file)
    elif kind == "code":
        torch.save({"version": 2, "config": Touching(touched)}, file)
    return {"empty": b"", "text": b"not a checkpoint", "cut": content[:2000]}.get(kind, file.getvalue())


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "another", "tensor", "code"])
def test_an_unreadable_checkpoint_is_named(windows: PackedWindows, finished: Path, tmp_path: Path, kind: str) -> None:
    """What is not a checkpoint is damage, with the file's name and a way on; code in it is never run."""
    content = newest_checkpoint(finished).read_bytes()
    path = tmp_path / "checkpoint-00000003.pt"
    path.write_bytes(garbage(kind, content, tmp_path / "touched"))
    with pytest.raises(DamageError) as caught:
        train(windows, config_of(windows), replace(OPTIONS, steps=3), run=tmp_path, resume=True)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "touched").exists()
    assert "dagpack build" not in caught.value.advice


def test_a_checkpoint_without_a_parameter_is_damaged(windows: PackedWindows, finished: Path, tmp_path: Path) -> None:
    """Nothing that is trained keeps its first weights because a file has none for it."""
    state = torch.load(newest_checkpoint(finished), weights_only=True)
    del state["model"]["norm.weight"]
    torch.save(state, tmp_path / "checkpoint-00000003.pt")
    with pytest.raises(DamageError, match=r"no parameter norm\.weight"):
        train(windows, config_of(windows), replace(OPTIONS, steps=3), run=tmp_path, resume=True)


def test_runs_do_not_mix(windows: PackedWindows, finished: Path, tmp_path: Path) -> None:
    """A folder with anything in it is only resumed, an empty one only begun."""
    options = replace(OPTIONS, steps=1)
    with pytest.raises(OutputError, match="not empty") as output:
        train(windows, config_of(windows), options, run=finished)
    assert "--resume" in output.value.advice
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputError, match="no checkpoint to resume from"):
        train(windows, config_of(windows), options, run=tmp_path / "empty", resume=True)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OutputError, match="not a directory"):
            train(windows, config_of(windows), options, run=path)
    assert len(train(windows, config_of(windows), options, run=tmp_path / "empty").steps) == 1


# -- options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("steps", 0),
        ("accumulate", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("warmup_steps", -1),
        ("weight_decay", -0.1),
        ("final_fraction", -0.1),
        ("clip", -1.0),
        ("workers", -1),
        ("validate_every", -1),
        ("checkpoint_every", -1),
    ],
)
def test_options_have_ranges(name: str, value: float) -> None:
    """An option that cannot work is refused by its name, before anything is read."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: {value}"):
        replace(OPTIONS, **options)


def test_devices(windows: PackedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown device, and a GPU where there is none, are usage errors; auto takes the CPU then."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("quantum", "cuda"):
        with pytest.raises(UsageError, match=f"--device: {device}"):
            train(windows, config_of(windows), replace(OPTIONS, device=device))
    result = train(windows, config_of(windows), replace(OPTIONS, device="auto", precision="auto", steps=1))
    assert {(parameter.device.type, parameter.dtype) for parameter in result.model.parameters()} == {
        ("cpu", torch.float32)
    }


# -- the command


def test_steps_go_to_stdout_without_a_run(out: Path) -> None:
    """Without --run, stdout is JSONL alone and the summary goes to stderr; both shards given are trained on."""
    ran = run("train", "--shards", out, "--shards", out, *FAST[:-1], "--epochs", "1")
    assert ran.code == 0
    steps = [StepReport(**json.loads(line)) for line in ran.out.splitlines()]
    assert len(steps) == 11
    assert steps[-1].val_loss is not None
    assert ran.err.startswith("11 steps, loss ")
    assert f"val loss {steps[-1].val_loss:.4f} nats after step 11" in ran.err


def test_a_run_prints_its_summary(out: Path, tmp_path: Path) -> None:
    """With --run, steps go to the folder and the summary to stdout; --quiet prints nothing."""
    words = ("train", "--shards", out, *FAST[:-1], "--steps", "2", "--run", tmp_path / "run")
    ran = run(*words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("2 steps, loss ")
    assert len(log_of(tmp_path / "run")) == 2
    assert run(*words, "--resume", "--quiet") == Ran(0, "", "")
    again = run(*words)
    assert (again.code, again.out) == (73, "")
    assert "hint: take another --run, or --resume to go on with the one in it" in again.err


def test_the_command_trains_as_the_function_does(out: Path, windows: PackedWindows, tmp_path: Path) -> None:
    """Every option of the command reaches the loop."""
    words = ["--steps", "3", "--batch-size", "2", "--accumulate", "2", "--learning-rate", "0.02", "--seed", "4"]
    words += ["--warmup-steps", "1", "--weight-decay", "0.3", "--clip", "0.2", "--precision", "float64"]
    words += ["--validate-every", "2", "--checkpoint-every", "2", "--device", "cpu", "--max-cells", "24", *SIZES]
    words += ["--workers", "0", "--objective", "unique", "--quiet", "--run", str(tmp_path / "run")]
    assert run("train", "--shards", out, *words) == Ran(0, "", "")
    state = torch.load(tmp_path / "run" / "checkpoint-00000003.pt", weights_only=True)
    expected = TrainOptions(
        steps=3, batch_size=2, accumulate=2, learning_rate=0.02, seed=4, warmup_steps=1, weight_decay=0.3, clip=0.2,
        precision="float64", validate_every=2, checkpoint_every=2, device="cpu", max_cells=24,
    )  # fmt: skip
    assert state["options"] == asdict(expected)
    assert state["config"] == asdict(config_of(windows))
    unique, val = PackedWindows(out, objective="unique"), PackedWindows(out, partition="val", objective="unique")
    result = train(unique, config_of(windows), expected, val=val)
    assert same(parameters_of(result), state["model"])
    assert log_of(tmp_path / "run") == [
        {name: value for name, value in asdict(step).items() if name != "seconds"} for step in result.steps
    ]


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--resume"], UsageError, "--resume: no --run is given"),
        (["--resume", "--run", "RUN"], NoInputError, "no checkpoint to resume from"),
        (["--steps", "0"], UsageError, "--steps: 0"),
        (["--batch-size", "0"], UsageError, "--batch-size: 0"),
        (["--max-cells", "4"], UsageError, "--max-cells: 4"),
        (["--width", "6"], UsageError, "--width: 6 with 2 heads"),
        (["--device", "quantum"], UsageError, "--device: quantum"),
        (["--device", "meta"], UsageError, "--device: meta"),
        (["--weight-decay", "-1"], UsageError, "--weight-decay: -1"),
        (["--seed", str(2**70)], UsageError, "--seed: "),
        (["--precision", "float8"], UsageError, "--precision"),
    ],
)
def test_command_errors(out: Path, tmp_path: Path, words: list[str], kind: type[DagpackError], message: str) -> None:
    """What the command cannot do ends with its exit status, two lines and nothing on stdout."""
    given = [str(tmp_path / "run") if word == "RUN" else word for word in words]
    ran = run("train", "--shards", out, *SIZES, *given)
    assert (ran.code, ran.out) == (kind.exit_code, ""), ran.err
    error, hint = ran.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")


def test_shards_that_are_not_there(tmp_path: Path) -> None:
    """A directory without a build ends with the status for missing input."""
    ran = run("train", "--shards", tmp_path)
    assert (ran.code, ran.out) == (66, "")
    assert "hint: dagpack build CORPUS OUT" in ran.err


WITHOUT = """
import sys
from dagpack_cli.cli import main

corpus, out, again = sys.argv[1:]
if {block}:
    sys.modules["torch"] = None
for words in (
    ["build", corpus, out, "--quiet"], ["pack", out, again, "--seq-len", "64", "--quiet"], ["stats", out],
    ["verify", out], ["show", out], ["export", out], ["path", out], ["train", "--help"], *{more},
):
    try:
        main(words)
    except SystemExit as stop:
        print(words[0], stop.code, "torch" in sys.modules and sys.modules["torch"] is not None, file=sys.stderr)
"""


@pytest.mark.parametrize("block", [False, True])
def test_torch_is_needed_for_training_alone(tmp_path: Path, block: bool) -> None:
    """No other command imports torch, and all work without it; train then says what to install."""
    script = WITHOUT.format(block=block, more=[["train", "--shards", str(tmp_path / "out")]] if block else [])
    words = [str(TINY / "pretokenised"), str(tmp_path / "out"), str(tmp_path / "again")]
    ran = run_process([sys.executable, "-c", script, *words], env=environment())
    commands = ["build", "pack", "stats", "verify", "show", "export", "path", "train"]
    lines = ran.err.splitlines()
    assert lines[: len(commands)] == [f"{name} 0 False" for name in commands]
    assert lines[len(commands) :] == (
        [
            "error: training: torch is not installed; torch 2.9 to 2.15",
            "hint: pip install 'dagpack-cli[train]'",
            "train 2 False",
        ]
        if block
        else []
    )
