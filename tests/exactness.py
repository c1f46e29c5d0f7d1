"""What the exactness tests share: random corpora, every layout of them, and each example run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from builds import read_windows, write_examples
from oracle import Example
from torch import Tensor

from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.provenance import read_provenance
from dagpack_cli.training import Decoder, DecoderConfig, PackedWindows, collate, tree_bool_mask, weighted_loss

LAYOUTS = ("padded", "packed", "best-fit", "walk", "dag")
SIZES = (
    DecoderConfig(vocab_size=266, width=4, heads=2, feed_forward=4, layers=1),
    DecoderConfig(vocab_size=266, width=8, heads=2, feed_forward=16, layers=2),
)


def random_examples(seed: int) -> list[Example]:
    """Return a few examples that share prefixes, with duplicates, prefixes of one another, masks and weights."""
    generator = np.random.default_rng(seed)
    examples: list[Example] = []
    for _ in range(int(generator.integers(2, 7))):
        start: tuple[int, ...] = ()
        if examples and generator.random() < 0.75:
            other = examples[int(generator.integers(len(examples)))].tokens
            start = other[: int(generator.integers(1, len(other) + 1))]
        fresh = generator.integers(0, 266, int(generator.integers(0 if len(start) > 1 else 2, 6)))
        tokens = (*start, *(int(token) for token in fresh))
        trained = frozenset(int(at) for at in np.flatnonzero(generator.random(len(tokens)) < 0.7) if at)
        examples.append(
            Example(tokens, trained or frozenset({len(tokens) - 1}), float(generator.choice([1.0, 2.0, 0.5])))
        )
    return examples


def build_layout(
    folder: Path, examples: list[Example], layout: str, seq_len: int, *, prune: bool = False
) -> tuple[PackedWindows, list[list[int]], Path]:
    """Build one layout; return its windows, the windows each example belongs to, and the generation."""
    if not (folder / "corpus").exists():
        write_examples(folder / "corpus", examples)
    result = build(
        folder / "corpus",
        folder / layout,
        tokenizer=TokenizerChoice(spec="none"),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(),
        pack_options=PackOptions(seq_len=seq_len, layout=layout, prune=prune),
        execution=Execution(),
    )
    owners = read_provenance(result.path / "examples.parquet").column("windows").to_pylist()
    return PackedWindows(folder / layout), owners, result.path


@dataclass
class Alone:
    """Every example run alone: logits by context, loss and gradient of each."""

    logits: dict[tuple[int, ...], Tensor]
    losses: list[Tensor]
    gradients: list[list[Tensor]]

    def summed(self, chosen: list[int]) -> tuple[Tensor, list[Tensor]]:
        """Return the losses and gradients of some examples, added."""
        loss = torch.stack([self.losses[number] for number in chosen]).sum()
        gradients = [torch.stack(parts).sum(0) for parts in zip(*(self.gradients[n] for n in chosen), strict=True)]
        return loss, gradients


def make_model(config: DecoderConfig, seed: int) -> Decoder:
    """Return a decoder in float64 whose weights are large enough for attention to matter."""
    torch.manual_seed(seed)
    model = Decoder(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(15)
    return model


def gradients_of(model: Decoder, loss: Tensor) -> list[Tensor]:
    """Return the gradient of every parameter, 0 where there is none."""
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(model.parameters(), found, strict=True)
    ]


def run_alone(model: Decoder, examples: list[Example]) -> Alone:
    """Run every example by itself: a plain causal mask, positions from 0, a shifted loss by hand."""
    alone = Alone({}, [], [])
    for example in examples:
        tokens = torch.tensor([example.tokens])
        size = tokens.shape[1] - 1
        mask = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
        logits = model(tokens[:, :-1], torch.arange(size)[None], mask)[0]
        loss = torch.zeros((), dtype=torch.float64)
        for target in sorted(example.trained):
            loss = loss - example.weight * torch.log_softmax(logits[target - 1], -1)[example.tokens[target]]
        for end in range(1, size + 1):
            alone.logits[example.tokens[:end]] = logits[end - 1].detach()
        alone.losses.append(loss.detach())
        alone.gradients.append(gradients_of(model, loss))
    return alone


def run_batch(
    model: Decoder, batch: dict[str, Any], *, mask: Tensor | None = None, positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits and the summed loss of a batch of windows."""
    mask = tree_bool_mask(batch["subtree_ends"]) if mask is None else mask
    positions = batch["position_ids"] if positions is None else positions
    logits = model(batch["input_ids"], positions, mask)
    return logits, weighted_loss(logits, batch["targets"], batch["weights"], 1.0)


def contexts_of(batch: dict[str, Any]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return, for every real row of a batch, the tokens on its path up to its input."""
    contexts: dict[tuple[int, int], tuple[int, ...]] = {}
    for window in range(len(batch["num_rows"])):
        for row in range(int(batch["num_rows"][window])):
            parent = int(batch["parents"][window, row])
            before = contexts[window, parent] if parent >= 0 else ()
            contexts[window, row] = (*before, int(batch["input_ids"][window, row]))
    return contexts


def worst(found: Tensor, expected: Tensor) -> float:
    """Return by how much the largest difference exceeds 1e-10 + 1e-9 x the larger value: 1 is the limit."""
    found, expected = found.detach(), expected.detach()
    difference = (found - expected).abs()
    limit = 1e-10 + 1e-9 * torch.maximum(found.abs(), expected.abs())
    return float((difference / limit).max()) if difference.numel() else 0.0


def worst_of(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the worst of several pairs of tensors."""
    return max(worst(left, right) for left, right in zip(found, expected, strict=True))


def all_windows(windows: PackedWindows) -> dict[str, Any]:
    """Return every window in one batch, padded by three rows more than the longest."""
    rows = windows.__getitems__(range(len(windows)))
    return collate(rows, max(row["num_rows"] for row in rows) + 3)


__all__ = [
    "LAYOUTS",
    "SIZES",
    "Alone",
    "TemporaryDirectory",
    "all_windows",
    "build_layout",
    "contexts_of",
    "gradients_of",
    "make_model",
    "random_examples",
    "read_windows",
    "run_alone",
    "run_batch",
    "worst",
    "worst_of",
]
