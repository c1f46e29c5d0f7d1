"""AdamW and its learning rate: up in a line, down in a cosine; matrices decay, vectors do not."""

from __future__ import annotations

import math

import torch
from torch import nn

from dagpack_cli.training.options import TrainOptions

__all__ = ["learning_rate", "make_optimizer"]


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """Return AdamW over the parameters that want gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=options.learning_rate, betas=(0.9, 0.95))


def learning_rate(step: int, total_steps: int, options: TrainOptions) -> float:
    """Return the learning rate of a step counted from 0."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    left = max(total_steps - options.warmup_steps, 1)
    fraction = min((step - options.warmup_steps) / left, 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))
    return options.learning_rate * (options.final_fraction + (1 - options.final_fraction) * cosine)
