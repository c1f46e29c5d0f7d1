"""The loss: weighted cross entropy, summed, divided once."""

from __future__ import annotations

import torch
from torch import Tensor

from dagpack_cli.errors import DataError

__all__ = ["weighted_loss"]


def weighted_loss(
    logits: Tensor, targets: Tensor, weights: Tensor, denominator: Tensor | float | None = None
) -> Tensor:
    """Return ``sum(weights * cross_entropy(logits, targets)) / denominator``.

    Rows of weight 0 (padding, context, what trains nothing) are left out before any arithmetic, so
    a NaN in their logits reaches neither the loss nor a gradient.

    Args:
        logits: shape (..., vocabulary), floating point; as the model gives them, not shifted.
        targets: shape (...), int64; a row's own target. Ignored where the weight is 0.
        weights: shape (...), floating point.
        denominator: of the whole step: the sum over all its micro-batches and ranks. A micro-batch
            without weight then adds exactly 0. Without one, the sum of these weights.

    Returns:
        a scalar of the logits' dtype, or float32 if that is less; in nats.

    Raises:
        DataError: there is no denominator and the weights sum to 0.
    """
    flat_weights = weights.reshape(-1)
    rows = flat_weights.nonzero(as_tuple=True)[0]
    chosen = logits.reshape(-1, logits.shape[-1])[rows]
    if chosen.dtype in (torch.float16, torch.bfloat16):
        chosen = chosen.float()
    losses = torch.nn.functional.cross_entropy(chosen, targets.reshape(-1)[rows], reduction="none")
    kept = flat_weights[rows].to(losses.dtype)
    if denominator is None:
        total = kept.sum()
        if float(total) == 0:
            raise DataError(
                "weights", "they sum to 0", "at least one row that trains", hint="give the denominator of the step"
            )
        return (losses * kept).sum() / total
    return (losses * kept).sum() / denominator
