"""The training loop: AdamW over windows, one global denominator a step, exact to the bit when resumed.

A step takes ``accumulate`` batches on every process; its loss is the weighted sum over all of them divided
once by the sum of their denominators, never a mean of means: one process or eight, the same windows make a
step and the same gradients come out. A step whose denominator is 0 is skipped and logged.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import nn

from dagpack_cli.errors import MismatchError, NoInputError
from dagpack_cli.training.causal_lm import BuiltIn, CausalLM
from dagpack_cli.training.checkpoints import (
    checkpoint_name,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
    stored,
    whole_state,
)
from dagpack_cli.training.curve import draw_curve, open_board
from dagpack_cli.training.loader import PackedLoader
from dagpack_cli.training.loss import weighted_loss
from dagpack_cli.training.model import DecoderConfig
from dagpack_cli.training.optimizer import learning_rate, make_optimizer
from dagpack_cli.training.options import TrainOptions
from dagpack_cli.training.pretrained import PretrainedOptions, load_pretrained
from dagpack_cli.training.processes import Processes, join, spread, whole
from dagpack_cli.training.reader import Batch, PackedWindows, to_device, whole_blocks
from dagpack_cli.training.reports import StepReport, TrainResult
from dagpack_cli.training.runs import check_run, make_run, open_log

__all__ = ["train"]

# Of the options, what a run that goes on may change. Windows a step are compared as a whole.
_MAY_CHANGE = {
    "device",
    "workers",
    "validate_every",
    "checkpoint_every",
    "keep_checkpoints",
    "parallel",
    "batch_size",
    "accumulate",
    "max_cells",
}


class Progress(Protocol):
    """Who hears how training goes on."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Hear that ``done`` of ``total`` steps are finished."""

    def note(self, text: str) -> None:
        """Hear something a person should know."""


def train(
    windows: PackedWindows,
    model: DecoderConfig | PretrainedOptions,
    options: TrainOptions,
    *,
    val: PackedWindows | None = None,
    run: Path | None = None,
    resume: bool = False,
    log: IO[str] | None = None,
    listener: Progress | None = None,
) -> TrainResult:
    """Train a model on windows: in this process, or in all that ``torchrun`` started.

    Args:
        windows: of the training partition.
        model: the size of a built-in decoder, or a Hugging Face model to fine-tune.
        options: of the training.
        val: windows to look at without training.
        run: a folder for ``steps.jsonl``, checkpoints, the curve, and the model in its own format; made if
            need be. Of several processes the first writes it, and all must see it.
        resume: go on from the newest checkpoint in ``run``.
        log: also gets the lines of ``steps.jsonl``.
        listener: hears the progress.

    Raises:
        OutputError: ``run`` holds another run and ``resume`` is not set.
        NoInputError: nothing to resume from, no windows, or no such model.
        MismatchError: the checkpoint is of other shards, another model or other options; or the model does
            not fit the windows.
        DiskError: another process of the run is gone.
    """
    if len(windows) == 0:
        raise NoInputError("training", "no windows", "a build with at least one")
    processes = join(options.device)
    if run is not None:
        check_run(run, resume=resume)
    with processes.together():
        trainer = _Trainer(windows, model, options, val, processes)
        if run is not None:
            processes.wait()  # or one would find what another has begun to write
            make_run(run)
            if resume:
                trainer.load(newest_checkpoint(run))
        if processes.leads:
            return _lead(trainer, run, log, listener)
        return TrainResult([_kept(trainer, report, run) for report in trainer.steps()], trainer.finish(run))


def _kept(trainer: _Trainer, report: StepReport, run: Path | None) -> StepReport:
    """Return a report; the step's checkpoint is written where it is due."""
    if run is not None and (trainer.done or _is_due(report.step, trainer.options.checkpoint_every)):
        trainer.save(run)
    return report


def _lead(trainer: _Trainer, run: Path | None, log: IO[str] | None, listener: Progress | None) -> TrainResult:
    """Take the steps that are left, and write and tell what they do."""
    reports = []
    board = open_board(run, trainer.step)
    try:
        with open_log(run, trainer.step) as file:
            for report in trainer.steps():
                for stream in (file, log):
                    if stream is not None:
                        stream.write(json.dumps(asdict(report)) + "\n")
                        stream.flush()
                board.show(report)
                reports.append(_kept(trainer, report, run))
                if listener is not None:
                    if report.loss is None:
                        listener.note(f"step {report.step} is skipped: nothing in it trains")
                    listener.progress("train", report.step, trainer.total_steps)
    finally:
        board.close()
    module = trainer.finish(run)
    if run is not None and draw_curve(run) is None and listener is not None:
        listener.note("no picture of the loss: it needs a step that trains, and pip install matplotlib")
    return TrainResult(reports, module)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class _Trainer:
    """A model, its optimiser and a loader, and where they stand."""

    def __init__(
        self,
        windows: PackedWindows,
        model: DecoderConfig | PretrainedOptions,
        options: TrainOptions,
        val: PackedWindows | None,
        processes: Processes,
    ) -> None:
        self.options, self.processes = options, processes
        self.device = processes.device
        self.dtype = _dtype(options.precision, self.device)
        self.mixed = self.dtype in (torch.bfloat16, torch.float16)
        torch.manual_seed(options.seed)
        self.lm = _model(model, windows, self.dtype, self.device, mixed=self.mixed)
        self._spread = spread(
            self.lm.module,
            self.lm.blocks,
            processes,
            options.parallel,
            compute=self.dtype if self.mixed else None,
            sparse=self.lm.sparse,
        )
        self.optimizer = make_optimizer(self.lm.module, options)
        length = whole_blocks(windows.window_len) if self.device.type == "cuda" else None
        loader_options: dict[str, Any] = {
            "batch_size": options.batch_size,
            "max_cells": options.max_cells,
            "length": length,
            "rank": processes.rank,
            "world": processes.size,
            "workers": options.workers,
            "fill": length is not None,
            "pin_memory": self.device.type == "cuda",
        }
        self.loader = PackedLoader(windows, seed=options.seed, **loader_options)
        self.val = None if val is None else PackedLoader(val, shuffle=False, **loader_options)
        self.step = 0
        steps_per_epoch = -(-len(self.loader) // options.accumulate)
        self.total_steps = options.steps or options.epochs * steps_per_epoch

    @property
    def windows_per_step(self) -> int:
        """Most windows of a step, over all its batches and processes."""
        return self.loader.batch_size * self.options.accumulate * self.processes.size

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
        # Dropout's numbers depend on the step and the process alone, so that a run goes on as it began.
        torch.manual_seed(_seed(self.options.seed, self.step, self.processes.rank))
        rate = learning_rate(self.step, self.total_steps, self.options)
        names = ("denominator", "num_rows", "owned", "counts")
        shares = [sum(float(batch[name].sum()) for batch in batches) for name in names]
        denominator, rows, distinct, pairs = self.processes.add(shares)
        loss: float | None = None
        norm = 0.0
        if denominator:
            loss = 0.0
            for number, batch in enumerate(batches, 1):
                with nullcontext() if number == len(batches) else self._spread.partly():
                    part = self.loss(batch, denominator)
                    # Processes average gradients, and the denominator is everybody's.
                    (part * self.processes.size).backward()  # type: ignore[no-untyped-call]
                loss += float(part.detach())
            (loss,) = self.processes.add([loss])
            norm = self._update(rate)
        return StepReport(
            step=self.step + 1,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            denominator=denominator,
            rows=int(rows),
            distinct_pairs=int(distinct),
            pairs=int(pairs),
            seconds=time.perf_counter() - started,
        )

    def _update(self, rate: float) -> float:
        limit = self.options.clip or math.inf
        norm = whole(nn.utils.clip_grad_norm_(self.lm.module.parameters(), limit))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def loss(self, batch: Batch, denominator: float) -> torch.Tensor:
        """Return a batch's share of the loss of a step."""
        moved = to_device(batch, self.device)
        with self._precision():
            logits = self.lm.logits(self._spread.call, moved)
        return weighted_loss(logits, moved["targets"], moved["weights"], denominator)

    def _precision(self) -> AbstractContextManager[Any]:
        """Return where activations have the precision asked for; FSDP2 sees to that by itself."""
        if not self.mixed or (self.processes.size > 1 and self.options.parallel == "fsdp"):
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @torch.no_grad()
    def validate(self) -> float | None:
        """Return the loss over the whole val partition, None where nothing in it trains."""
        assert self.val is not None
        total = denominator = 0.0
        self.lm.module.eval()
        for batch in self.val:
            share = float(batch["denominator"].sum())
            # All processes pass through a sharded model together, also with nothing to train.
            if share or self.processes.size > 1:
                total += float(self.loss(batch, 1.0))
                denominator += share
        self.lm.module.train()
        total, denominator = self.processes.add([total, denominator])
        return total / denominator if denominator else None

    def finish(self, run: Path | None) -> nn.Module:
        """Write the trained model in its own format, ``run/model``; return it."""
        if run is not None and self.lm.exports:
            state = whole_state(self.lm.module)
            if self.processes.leads:
                partial, folder = run / ".model.partial", run / "model"
                shutil.rmtree(partial, ignore_errors=True)
                with stored(partial):
                    self.lm.save(partial, state)
                    shutil.rmtree(folder, ignore_errors=True)
                    partial.rename(folder)
            self.processes.wait()
        return self.lm.module

    def save(self, run: Path) -> None:
        """Write everything a later run needs to go on as if it had not stopped."""
        facts = {
            "step": self.step,
            "config": self.lm.identity,
            "options": asdict(self.options),
            "windows_per_step": self.windows_per_step,
            "loader": self.loader.state_dict(),
        }
        path = run / checkpoint_name(self.step)
        save_checkpoint(path, self.lm.module, self.optimizer, facts, leads=self.processes.leads)
        if self.processes.leads:
            prune_checkpoints(run, self.options.keep_checkpoints)

    def load(self, path: Path) -> None:
        """Go to where a checkpoint was written, with this many processes or any other number.

        Raises:
            DamageError: not a whole checkpoint.
            MismatchError: of another model, other shards or other options.
        """
        state = read_checkpoint(path)
        options = {name: value for name, value in asdict(self.options).items() if name not in _MAY_CHANGE}
        _compare(path, state["config"], self.lm.identity, "resume with the same model")
        _compare(path, state["options"], options, "resume with the same options")
        batch = "batch size x --accumulate x processes must stay the same product"
        _compare(path, state, {"windows_per_step": self.windows_per_step}, batch)
        self.loader.load_state_dict(state["loader"])
        load_checkpoint(path, state, self.lm.module, self.optimizer)
        self.step = int(state["step"])


def _compare(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any], hint: str) -> None:
    for name, value in expected.items():
        if found.get(name) != value:
            raise MismatchError(str(path), f"{name} {found.get(name)}", f"{value}, as given now", hint=hint)


def _model(
    model: DecoderConfig | PretrainedOptions,
    windows: PackedWindows,
    dtype: torch.dtype,
    device: torch.device,
    *,
    mixed: bool,
) -> CausalLM:
    """Return the model to train; its parameters are float32 where activations are less."""
    trained = torch.float32 if mixed else dtype
    if isinstance(model, DecoderConfig):
        return BuiltIn(model, trained, device)
    return load_pretrained(model, windows, dtype=trained, device=device, frozen_dtype=dtype)


def _seed(*numbers: int) -> int:
    """Return a number of 63 bits that depends on all of some numbers, the same everywhere."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    if precision == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[precision]
