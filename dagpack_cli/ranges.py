"""The ranges of numbers that training takes: for its options, and for the command, which looks without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dagpack_cli.errors import UsageError

__all__ = ["check_ranges"]

_Range = tuple[Callable[[float], bool], str]
_ONE: _Range = (lambda value: value >= 1, "at least 1")
_ZERO: _Range = (lambda value: 0 <= value < math.inf, "at least 0")
_ABOVE: _Range = (lambda value: 0 < value < math.inf, "a number above 0")
_RANGES: dict[str, _Range] = {
    "epochs": _ONE,
    "steps": _ONE,
    "batch_size": _ONE,
    "max_cells": _ONE,
    "accumulate": _ONE,
    "learning_rate": _ABOVE,
    "warmup_steps": _ZERO,
    "final_fraction": _ZERO,
    "weight_decay": _ZERO,
    "clip": (lambda value: value >= 0, "at least 0, which is none"),
    "validate_every": _ZERO,
    "checkpoint_every": _ZERO,
    "keep_checkpoints": _ZERO,
    "lora": (lambda value: value >= 1, "a rank of 1 or more"),
    "lora_alpha": _ABOVE,
    "width": _ONE,
    "heads": _ONE,
    "feed_forward": _ONE,
    "layers": _ONE,
    "windows": _ONE,
    "workers": _ZERO,
    "seed": (lambda value: 0 <= value < 2**63, "0 to 9,223,372,036,854,775,807"),
}


def check_ranges(values: Mapping[str, Any]) -> None:
    """Check every value that is a number of a known name, and is given.

    Args:
        values: by the names that options have in code; None is not given.

    Raises:
        UsageError: one is outside its range, NaN outside every one.

    >>> check_ranges({"steps": None, "epochs": 3, "shards": "out"})
    """
    for name, (is_in, expected) in _RANGES.items():
        value = values.get(name)
        if value is not None and not is_in(value):
            raise UsageError("--" + name.replace("_", "-"), str(value), expected)
