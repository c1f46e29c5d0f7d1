"""A whole training run on dag windows is, step by step, the run over the same steps' examples alone."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from exactness import build_layout, random_examples, run_alone
from oracle import Example

from dagpack_cli.training import Decoder, DecoderConfig, PackedLoader, PackedWindows, TrainOptions, train

STEPS = 200
OPTIONS = TrainOptions(
    steps=STEPS, batch_size=2, accumulate=2, learning_rate=2e-3, warmup_steps=10, precision="float64", seed=3
)


def steps_of_examples(windows: PackedWindows, owners: list[list[int]]) -> list[list[int]]:
    """Return the examples of every step, in the loader's own order of windows."""
    loader = PackedLoader(windows, batch_size=OPTIONS.batch_size, seed=OPTIONS.seed)
    steps: list[list[int]] = []
    while len(steps) < STEPS:
        batches = [batch["window"].tolist() for batch in loader]
        for start in range(0, len(batches), OPTIONS.accumulate):
            taken = {window for batch in batches[start : start + OPTIONS.accumulate] for window in batch}
            steps.append([number for number, homes in enumerate(owners) if taken & set(homes)])
    return steps[:STEPS]


def learning_rate(step: int) -> float:
    """Return the learning rate of a step: up in a line over the warm-up, then a cosine down to a tenth."""
    if step < OPTIONS.warmup_steps:
        return OPTIONS.learning_rate * (step + 1) / OPTIONS.warmup_steps
    fraction = (step - OPTIONS.warmup_steps) / (STEPS - OPTIONS.warmup_steps)
    return OPTIONS.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * fraction)))


def run_separately(config: DecoderConfig, examples: list[Example], steps: list[list[int]]) -> list[float]:
    """Return the loss of every step when each example is run alone and its gradients are added."""
    torch.manual_seed(OPTIONS.seed)
    model = Decoder(config).double()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    losses = []
    for step, chosen in enumerate(steps):
        alone = run_alone(model, [examples[number] for number in chosen])
        loss, gradients = alone.summed(list(range(len(chosen))))
        total = sum(examples[number].weight * len(examples[number].trained) for number in chosen)
        norm = math.sqrt(sum(float((gradient / total).square().sum()) for gradient in gradients))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient / total * min(1.0, OPTIONS.clip / (norm + 1e-6))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(float(loss / total))
    return losses


def test_two_hundred_steps_equal_a_separate_run(tmp_path: Path) -> None:
    """Losses of 200 float64 steps agree to 1e-9 with running every step's examples alone and adding them."""
    examples = [example for seed in range(12) for example in random_examples(seed)]
    windows, owners, _ = build_layout(tmp_path, examples, "dag", 14, prune=True)
    assert len(windows) > 8
    config = DecoderConfig(vocab_size=windows.vocab_size, width=8, heads=2, feed_forward=16, layers=2)
    result = train(windows, config, OPTIONS)
    found = [step.loss for step in result.steps]
    expected = run_separately(config, examples, steps_of_examples(windows, owners))
    assert len(found) == len(expected) == STEPS
    for step, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert left is not None
        assert abs(left - right) <= 1e-9 * right, f"step {step + 1}: {left} and {right}"
    assert expected[-1] < expected[0]
