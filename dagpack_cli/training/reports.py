"""What a run says of itself: a report a step, and the lines it ends with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

__all__ = ["StepReport", "TrainResult", "summary"]


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
    model: nn.Module

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
