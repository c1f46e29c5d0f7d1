"""Rewards of the answers to one prompt, and the weight they give each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagpack_cli.corpora.records import Place, shown
from dagpack_cli.errors import DataError

__all__ = ["GroupRewards", "read_reward", "rewards_by_group", "times"]

_FLOAT32_MIN = float(np.finfo(np.float32).tiny)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_EPSILON = 1e-4


@dataclass(slots=True)
class GroupRewards:
    """The mean and spread of a group's rewards, added one by one (Welford's recurrence).

    Equal rewards have a spread of exactly 0, whatever their size: sums of squares would not.
    """

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, reward: float) -> None:
        """Add one reward."""
        self.num += 1
        delta = reward - self.mean
        self.mean += delta / self.num
        self.squares += delta * (reward - self.mean)

    def advantage(self, reward: float) -> float:
        """Return how much better than its group an answer was: GRPO's group-relative advantage.

        It is (reward - mean) / (deviation + 0.0001), with the deviation of a sample (divided by
        n - 1). The paper (DeepSeekMath, section 4.1.2) leaves out both; this is what trainers such
        as TRL compute. The summand keeps rewards that differ by rounding from being blown up. A
        group of one, or of equal rewards, has nothing to learn from: 0.

        >>> group = rewards_by_group([("a", 0.0), ("a", 1.0)])["a"]
        >>> round(group.advantage(1.0), 4)
        0.707
        """
        if self.num < 2:
            return 0.0
        return (reward - self.mean) / (math.sqrt(self.squares / (self.num - 1)) + _EPSILON)


def rewards_by_group(rewards: Iterable[tuple[str, float]]) -> dict[str, GroupRewards]:
    """Return the rewards of every group. Memory is O(groups), whatever the order they come in."""
    found: dict[str, GroupRewards] = {}
    for group, reward in rewards:
        found.setdefault(group, GroupRewards()).add(reward)
    return found


def read_reward(value: Any, name: str, place: Place) -> float:
    """Return a reward or an advantage; truth values count as 0 and 1.

    Raises:
        DataError: it is missing, no number, not finite, or too large for float32.
    """
    if not isinstance(value, int | float) or not abs(value) <= _FLOAT32_MAX:
        raise DataError(
            str(place),
            f'"{name}" is {shown(value)}',
            f"a finite number of at most {_FLOAT32_MAX:.3g}",
            hint="correct it, leave it out with --on-error skip, or do without rewards with --group-weight none",
        )
    return float(value)


def times(weight: float, factor: float, place: Place) -> float:
    """Return the product of two weights, 0 where float32 cannot tell it from that.

    Raises:
        DataError: float32 cannot hold it.
    """
    product = weight * factor
    if abs(product) > _FLOAT32_MAX:
        raise DataError(str(place), f"weight {weight:g} times {factor:g} is too large", f"at most {_FLOAT32_MAX:.3g}")
    return product if abs(product) >= _FLOAT32_MIN else 0.0
