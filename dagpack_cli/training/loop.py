"""The training loop: AdamW over windows, one global denominator a step, exact to the bit when resumed.

A step takes ``accumulate`` batches; its loss is the weighted sum over all of them divided once by the
sum of their denominators, never a mean of means. A step whose denominator is 0 is skipped and logged.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import torch
from torch import nn

from dagpack_cli.errors import DamageError, MismatchError, NoInputError, OutputError, UsageError
from dagpack_cli.storage import write_atomic
from dagpack_cli.training.attention import mask_for
from dagpack_cli.training.loss import weighted_loss
from dagpack_cli.training.model import Decoder, DecoderConfig
from dagpack_cli.training.reader import Batch, PackedLoader, PackedWindows, to_device

__all__ = ["StepReport", "TrainOptions", "TrainResult", "summary", "train"]

_MAY_CHANGE = {"device", "workers", "validate_every", "checkpoint_every"}  # of the options, when resuming
_REMOVE = "remove it, and --resume takes the one before"
BLOCK_ROWS = 128  # what a GPU's windows are padded to a multiple of: FlexAttention's block


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train.

    Attributes:
        epochs: passes over the windows, where ``steps`` is None.
        steps: optimiser steps in all.
        batch_size: windows of one forward pass.
        accumulate: forward passes of one step.
        max_cells: most cells of one forward pass.
        learning_rate: the highest, after the warm-up.
        warmup_steps: steps over which it rises from 0.
        final_fraction: of the learning rate, where the cosine ends.
        weight_decay: of AdamW, on matrices alone.
        clip: largest gradient norm; 0 leaves gradients alone.
        seed: of the order and of the first weights.
        precision: of activations; auto is bfloat16 where the device has it, else float32.
        device: cpu, cuda, or auto.
        workers: processes that read ahead.
        validate_every: steps between looks at the val partition; 0 looks once, at the end.
        checkpoint_every: steps between checkpoints; 0 writes one, at the end.
    """

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 1
    accumulate: int = 1
    max_cells: int | None = None
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    device: str = "auto"
    workers: int = 0
    validate_every: int = 0
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        checks = {
            "--epochs": self.epochs >= 1,
            "--steps": self.steps is None or self.steps >= 1,
            "--accumulate": self.accumulate >= 1,
            "--learning-rate": self.learning_rate > 0,
            "--warmup-steps": self.warmup_steps >= 0,
            "--final-fraction": self.final_fraction >= 0,
            "--weight-decay": self.weight_decay >= 0,
            "--clip": self.clip >= 0,
            "--seed": 0 <= self.seed < 2**63,
            "--workers": self.workers >= 0,
            "--validate-every": self.validate_every >= 0,
            "--checkpoint-every": self.checkpoint_every >= 0,
        }
        for option, valid in checks.items():
            if not valid:
                name = option[2:].replace("-", "_")
                raise UsageError(option, str(getattr(self, name)), "a number in its range")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step: a line of ``steps.jsonl``.

    Attributes:
        step: from 1 on.
        epoch: the one its first batch belongs to.
        loss: in nats; None where the step was skipped because nothing in it trains.
        learning_rate, gradient_norm: of the step, the norm before clipping.
        denominator: the global sum of weights the loss was divided by.
        rows: computed; distinct_pairs: owned among them; pairs: of the corpus that they stand for.
        seconds: wall time, waiting for batches included, looking at the val partition not.
        val_loss: where this step looked.
    """

    step: int
    epoch: int
    loss: float | None
    learning_rate: float
    gradient_norm: float
    denominator: float
    rows: int
    distinct_pairs: int
    pairs: int
    seconds: float
    val_loss: float | None = None


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run did: its last step and its totals from where it started or was resumed."""

    steps: list[StepReport]
    model: Decoder

    @property
    def throughput(self) -> dict[str, float]:
        """Rows computed, distinct pairs trained and pairs of the corpus they stand for, a second."""
        seconds = sum(step.seconds for step in self.steps) or math.inf
        return {
            name: sum(getattr(step, name) for step in self.steps) / seconds
            for name in ("rows", "distinct_pairs", "pairs")
        }


def summary(result: TrainResult) -> str:
    """Return the lines that `dagpack train` ends with: how the loss went, and the throughput three ways."""
    taken = [step for step in result.steps if step.loss is not None]
    if not taken:
        return "no step was left to take"
    rates, count = result.throughput, len(result.steps)
    lines = [
        f"{count:,} {'step' if count == 1 else 'steps'}, loss {taken[0].loss:.4f} to {taken[-1].loss:.4f} nats",
        f"a second: {rates['rows']:,.0f} rows computed, {rates['distinct_pairs']:,.0f} distinct pairs trained, "
        f"standing for {rates['pairs']:,.0f} pairs of the corpus",
    ]
    looks = [step for step in result.steps if step.val_loss is not None]
    if looks:
        lines.append(f"val loss {looks[-1].val_loss:.4f} nats after step {looks[-1].step:,}")
    return "\n".join(lines)


class Progress(Protocol):
    """Who hears how training goes on."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Hear that ``done`` of ``total`` steps are finished."""

    def note(self, text: str) -> None:
        """Hear something a person should know."""


def train(
    windows: PackedWindows,
    config: DecoderConfig,
    options: TrainOptions,
    *,
    val: PackedWindows | None = None,
    run: Path | None = None,
    resume: bool = False,
    log: IO[str] | None = None,
    listener: Progress | None = None,
) -> TrainResult:
    """Train the built-in decoder on windows.

    Args:
        windows: of the training partition.
        config: size of the decoder.
        options: of the training.
        val: windows to look at without training.
        run: a folder for ``steps.jsonl`` and checkpoints; made if need be.
        resume: go on from the newest checkpoint in ``run``.
        log: also gets the lines of ``steps.jsonl``.
        listener: hears the progress.

    Raises:
        OutputError: ``run`` holds another run and ``resume`` is not set.
        NoInputError: nothing to resume from, or no windows.
        MismatchError: the checkpoint is of other shards, another model or other options.
    """
    if len(windows) == 0:
        raise NoInputError("training", "no windows", "a build with at least one")
    trainer = _Trainer(windows, config, options, val)
    if run is not None:
        _prepare(run, resume=resume)
        if resume:
            trainer.load(newest_checkpoint(run))
    reports = []
    with _open_log(run, trainer.step) as file:
        for report in trainer.steps():
            saved = run is not None and (trainer.done or _is_due(report.step, options.checkpoint_every))
            for stream in (file, log):
                if stream is not None:
                    stream.write(json.dumps(asdict(report)) + "\n")
                    stream.flush()
            if run is not None and saved:
                trainer.save(run / f"checkpoint-{report.step:08d}.pt")
            if listener is not None:
                if report.loss is None:
                    listener.note(f"step {report.step} is skipped: nothing in it trains")
                listener.progress("train", report.step, trainer.total_steps)
            reports.append(report)
    return TrainResult(reports, trainer.model)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _open_log(run: Path | None, step: int) -> Any:
    """Return ``steps.jsonl``, without the lines after a step: those will be written again."""
    if run is None:
        return nullcontext(None)
    path = run / "steps.jsonl"
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = "".join(line for line in written.splitlines(keepends=True) if line[-1] == "\n" and _step_of(line) <= step)
    if kept != written:  # a line cut by a crash is no line
        write_atomic(path, kept.encode())
    return path.open("a", encoding="utf-8")


def _step_of(line: str) -> float:
    """Return the step of a line of ``steps.jsonl``; infinity for a line that is none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _prepare(run: Path, *, resume: bool) -> None:
    if resume:
        newest_checkpoint(run)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(str(run), "not a directory", "a folder for the run") from None
    if not resume and any(run.iterdir()):
        raise OutputError(str(run), "not empty", "an empty folder, or none", hint="--resume goes on with the run in it")


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run.

    Raises:
        NoInputError: there is none.
    """
    found = sorted(run.glob("checkpoint-*.pt"))
    if not found:
        raise NoInputError(str(run), "no checkpoint to resume from", "checkpoint-*.pt", hint="leave --resume out")
    return found[-1]


class _Trainer:
    """A model, its optimiser and a loader, and where they stand."""

    def __init__(
        self, windows: PackedWindows, config: DecoderConfig, options: TrainOptions, val: PackedWindows | None
    ) -> None:
        self.options, self.config = options, config
        self.device = _device(options.device)
        self.dtype = _dtype(options.precision, self.device)
        torch.manual_seed(options.seed)
        self.model = Decoder(config).to(self.device)
        if self.dtype == torch.float64:
            self.model.double()
        self.optimizer = _optimizer(self.model, options)
        length = None
        if self.device.type == "cuda":
            length = -(-windows.window_len // BLOCK_ROWS) * BLOCK_ROWS
        self._loader_options: dict[str, Any] = {
            "batch_size": options.batch_size,
            "max_cells": options.max_cells,
            "length": length,
            "workers": options.workers,
            "fill": length is not None,
            "pin_memory": self.device.type == "cuda",
        }
        self.loader = PackedLoader(windows, seed=options.seed, **self._loader_options)
        self.val = None if val is None else PackedLoader(val, shuffle=False, **self._loader_options)
        self.step = 0
        steps_per_epoch = -(-len(self.loader) // options.accumulate)
        self.total_steps = options.steps or options.epochs * steps_per_epoch

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return self.step >= self.total_steps

    def steps(self) -> Iterator[StepReport]:
        """Take the steps that are left, one at a time."""
        while self.step < self.total_steps:
            epoch = self.loader.epoch
            batches = iter(self.loader)
            started = time.perf_counter()
            while taken := list(islice(batches, self.options.accumulate)):
                report = self._take(taken, epoch, started)
                self.step += 1
                last = self.step == self.total_steps
                if self.val is not None and (last or _is_due(self.step, self.options.validate_every)):
                    report = replace(report, val_loss=self.validate())
                yield report
                if last:
                    return
                started = time.perf_counter()

    def _take(self, batches: Sequence[Batch], epoch: int, started: float) -> StepReport:
        """Take one optimiser step over some batches."""
        learning_rate = _learning_rate(self.step, self.total_steps, self.options)
        denominator = float(sum(batch["denominator"].sum() for batch in batches))
        loss: float | None = None
        norm = 0.0
        if denominator:
            loss = 0.0
            for batch in batches:
                part = self.loss(batch, denominator)
                part.backward()  # type: ignore[no-untyped-call]
                loss += float(part.detach())
            norm = self._update(learning_rate)
        return StepReport(
            step=self.step + 1,
            epoch=epoch,
            loss=loss,
            learning_rate=learning_rate,
            gradient_norm=norm,
            denominator=denominator,
            rows=sum(int(batch["num_rows"].sum()) for batch in batches),
            distinct_pairs=sum(int(batch["owned"].sum()) for batch in batches),
            pairs=sum(int(batch["counts"].sum()) for batch in batches),
            seconds=time.perf_counter() - started,
        )

    def _update(self, learning_rate: float) -> float:
        limit = self.options.clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def loss(self, batch: Batch, denominator: float) -> torch.Tensor:
        """Return a batch's share of the loss of a step."""
        moved = to_device(batch, self.device)
        mixed = self.dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(self.device.type, dtype=self.dtype) if mixed else nullcontext():
            logits = self.model(moved["input_ids"], moved["position_ids"], mask_for(moved["subtree_ends"]))
        return weighted_loss(logits, moved["targets"], moved["weights"], denominator)

    @torch.no_grad()
    def validate(self) -> float | None:
        """Return the loss over the whole val partition, None where nothing in it trains."""
        assert self.val is not None
        total = denominator = 0.0
        for batch in self.val:
            share = float(batch["denominator"].sum())
            if share:
                total += float(self.loss(batch, 1.0))
                denominator += share
        return total / denominator if denominator else None

    def save(self, path: Path) -> None:
        """Write everything a later run needs to go on as if it had not stopped; beside, synced, renamed."""
        state = {
            "version": 1,
            "step": self.step,
            "config": asdict(self.config),
            "options": asdict(self.options),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go to where a checkpoint was written. Nothing but tensors and plain values is unpickled."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError, struct.error) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DamageError(str(path), f"unreadable ({reason})", "a checkpoint", hint=_REMOVE) from None
        if not isinstance(state, dict) or state.get("version") != 1:
            raise DamageError(str(path), "not written by dagpack train", "a checkpoint", hint=_REMOVE)
        for name, expected in {"config": asdict(self.config), "options": asdict(self.options)}.items():
            for key in [key for key in expected if key not in _MAY_CHANGE]:
                if state[name][key] != expected[key]:
                    raise MismatchError(
                        str(path),
                        f"{key} {state[name][key]}",
                        f"{expected[key]}, as given now",
                        hint="resume with the same options",
                    )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.step = int(state["step"])


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError("--device", name, "cpu, cuda or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError("--device", name, "cpu, cuda or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device", name, "a device that is here", hint="--device cpu")
    return device


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    if precision == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[precision]


def _optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95))


def _learning_rate(step: int, total_steps: int, options: TrainOptions) -> float:
    """Return the learning rate of a step counted from 0: up in a line, then down in a cosine."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    left = max(total_steps - options.warmup_steps, 1)
    fraction = min((step - options.warmup_steps) / left, 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))
    return options.learning_rate * (options.final_fraction + (1 - options.final_fraction) * cosine)
