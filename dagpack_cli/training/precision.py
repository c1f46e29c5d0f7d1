"""Float64 throughout, for comparing two ways of computing the same.

Models in float64 still compute parts in float32, because their code says so: norms, softmax, routers,
rotary angles. Two runs that are equal in exact arithmetic then differ by 1e-7 in gradients, which hides
every smaller mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["float64_only"]


@contextmanager
def float64_only() -> Iterator[None]:
    """Compute in float64 what code asks to be computed in float32.

    Within it ``.float()``, ``.to(torch.float32)``, ``softmax(dtype=torch.float32)`` and every other call
    that names float32 give float64. The model and its inputs are to be float64 already, made outside: a
    model that is made within has other angles than one that is not. Backward may be inside or not,
    but not with gradient checkpointing, whose second forward pass, within backward, it does not reach. For the
    calling thread: on the CPU that is all, on a GPU not the backward.
    """
    with _Float64Only():
        yield


class _Float64Only(TorchFunctionMode):
    """Answers every torch function with float32 replaced by float64 in what it was called with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call the function; PyTorch's protocol."""
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*(_wide(value) for value in args), **wide)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
