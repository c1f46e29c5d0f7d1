"""Training runs of several processes, started by ``torchrun``: a script.

    torchrun --nproc-per-node 2 distributed_runs.py SHARDS MODELS FOLDER NAME...

Every name is one of `RUNS`; its run goes to FOLDER/NAME. ``killed`` ends in SIGKILL, in the middle of a run.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from dagpack_cli.training import (
    DecoderConfig,
    LoraOptions,
    PackedWindows,
    PretrainedOptions,
    TrainOptions,
    WindowTrainerMixin,
    train,
)

OPTIONS = TrainOptions(
    device="cpu", precision="float64", learning_rate=1e-2, steps=9, checkpoint_every=2, seed=5, validate_every=3
)
"""What every run here shares; two processes take two batches of a window a step, or one process takes both."""

RUNS = {
    "ddp": ("", OPTIONS),
    "fsdp": ("", replace(OPTIONS, parallel="fsdp")),
    "llama-ddp": ("llama", OPTIONS),
    "llama-fsdp": ("llama", replace(OPTIONS, parallel="fsdp")),
    "lora-ddp": ("lora", OPTIONS),
    "lora-fsdp": ("lora", replace(OPTIONS, parallel="fsdp")),
    "experts-ddp": ("experts", OPTIONS),
    "killed": ("", OPTIONS),
}


def model_of(kind: str, windows: PackedWindows, models: Path) -> DecoderConfig | PretrainedOptions:
    """Return the model of a kind: the built-in decoder, or one of a folder of Hugging Face models."""
    if not kind:
        return DecoderConfig(vocab_size=windows.vocab_size, width=8, heads=2, feed_forward=16, layers=2)
    if kind == "lora":
        return PretrainedOptions(path=str(models / "llama"), lora=LoraOptions(rank=2))
    return PretrainedOptions(path=str(models / kind))


class Killer:
    """Hears the progress of a run, and ends its process without a word after some steps."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Kill this process after step 5."""
        if done == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, text: str) -> None:
        """Hear nothing."""


def take_trainer(windows: PackedWindows, model: Path, run: Path, accumulate: int = 1) -> None:
    """Take two epochs in transformers' trainer, one window a batch; the model goes to ``run``."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    class WindowTrainer(WindowTrainerMixin, Trainer):
        pass

    arguments = TrainingArguments(
        str(run), num_train_epochs=2, per_device_train_batch_size=1, gradient_accumulation_steps=accumulate,
        learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = WindowTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64), arguments, train_dataset=windows
    )
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(str(run))
        trainer.save_state()


def main(shards: str, models: str, folder: str, *names: str) -> None:
    """Take the runs; those that have begun are resumed."""
    windows, val = PackedWindows(shards), PackedWindows(shards, partition="val")
    for name in names:
        if name == "trainer":
            take_trainer(windows, Path(models) / "llama", Path(folder) / name)
            continue
        kind, options = RUNS[name.removesuffix("+")]
        run = Path(folder) / name.removesuffix("+")
        listener = Killer() if name == "killed" else None
        model = model_of(kind, windows, Path(models))
        train(windows, model, options, val=val, run=run, resume=name.endswith("+"), listener=listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
