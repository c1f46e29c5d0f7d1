"""How to train: every choice that is not the model's, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagpack_cli.ranges import check_ranges

__all__ = ["TrainOptions"]


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
        keep_checkpoints: newest ones that stay; 0 keeps all.
        parallel: how several processes share the work: ``ddp`` gives each the whole model, ``fsdp`` (FSDP2) a
            part of it; nothing to choose in one process.
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
    keep_checkpoints: int = 0
    parallel: Literal["ddp", "fsdp"] = "ddp"

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges({name: getattr(self, name) for name in self.__dataclass_fields__})
