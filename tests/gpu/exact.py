"""Exactness on a device: windows against SDPA with a boolean mask, and against their own examples run alone.

The fast side is what training takes there, from the product's own models: compiled FlexAttention on a GPU,
segments on a CPU. Everything is measured over the largest value of its kind, so that errors are in units of
rounding: float32 has 6e-8, bfloat16 4e-3.

float32, TF32 off: two orders of summation of a few thousand terms differ by some 1e-6 of the largest value,
which `LIMITS` gives a factor of ten in logits and of a hundred in gradients, each over its own parameter's
largest. TF32, which is 1e-3, would fail, and so does every wrong mask: the least of them moves logits by 1e-2.

bfloat16: the question is not how far the sides are apart but whether the fast one rounds worse than SDPA does.
Both are held against float32, and the fast one may be twice as far off, and one rounding: the criterion of
FlashAttention's own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dagpack_cli.training import PackedWindows, collate, model_inputs, tree_bool_mask, weighted_loss
from dagpack_cli.training.causal_lm import BuiltIn, CausalLM
from dagpack_cli.training.own_examples import OwnExample, own_examples
from dagpack_cli.training.pretrained import Pretrained
from dagpack_cli.training.reader import Batch, to_device

__all__ = ["LIMITS", "check_exact", "mutants"]

LIMITS = {"logits": 1e-5, "loss": 1e-5, "gradients": 1e-4}
_ROUNDING = 2.0**-8  # of bfloat16
_SMALL = 1e-3  # of the largest gradient: those of parameters with smaller ones are measured over this much of it
_TOLD_APART = 10  # times the limit that a wrong mask must be off


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a pass computed: logits of rows (rows, vocabulary), the loss, gradients by name; float32."""

    logits: Tensor
    loss: float
    gradients: dict[str, Tensor]

    def off(self, expected: _Outcome) -> dict[str, float]:
        """Return the largest differences from another outcome, over the largest values of it."""
        largest = {name: float(value.abs().max()) for name, value in expected.gradients.items()}
        least = _SMALL * max(largest.values())
        ratios = [
            float((self.gradients[name] - value).abs().max()) / max(largest[name], least)
            for name, value in expected.gradients.items()
        ]
        return {
            "logits": _ratio(self.logits, expected.logits),
            "loss": abs(self.loss - expected.loss) / abs(expected.loss),
            "gradients": float("nan") if any(ratio != ratio for ratio in ratios) else max(ratios),
        }


def _ratio(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max()) / float(expected.abs().max())


def check_exact(lm: CausalLM, windows: PackedWindows, precision: str, device: torch.device) -> dict[str, Any]:
    """Return how one window's logits, loss and every gradient differ between ways to compute them, and the verdict.

    Args:
        lm: a model in float32 on the device; its logits are the fast side.
        windows: of layout dag, with branches.
        precision: float32 or bfloat16; the latter under autocast, as `dagpack train` does it.
        device: where.

    Returns:
        by name: ``off`` from SDPA, from the examples alone and from SDPA in float32, ``limits``, ``mutants``
        and how far these are off, and ``passed``.
    """
    torch._dynamo.reset()  # graphs of other models would make this one's sizes symbols
    number = next(number for number in range(len(windows)) if _branch(windows[number]["parents"].tolist()))
    batch = to_device(collate([windows[number]], windows.window_len), device)
    owned = own_examples(windows.paths[0], windows.manifest, windows.partition, [number])[number]
    with _autocast(precision, device):
        fast = _outcome(lm, lambda: lm.logits(lm.module, batch), batch)
        slow = _outcome(lm, lambda: _sdpa(lm, batch), batch)
        alone = _alone(lm, batch, owned, slow.logits)
        wrong = {
            name: _ratio(_rows(lm.logits(lm.module, mutant), batch), slow.logits)
            for name, mutant in mutants(batch).items()
        }
    off = {"SDPA": fast.off(slow), "alone": fast.off(alone)}
    limits = dict(LIMITS)
    if precision == "bfloat16":
        exact = _outcome(lm, lambda: _sdpa(lm, batch), batch)
        limits = {name: 2 * value + _ROUNDING for name, value in slow.off(exact).items()}
        off = {"SDPA in float32": fast.off(exact), **off}
    judged = ["SDPA in float32"] if precision == "bfloat16" else ["SDPA", "alone"]
    least = {"float32": _TOLD_APART, "bfloat16": 2}[precision] * limits["logits"]
    return {
        "rows": int(batch["num_rows"]),
        "examples": len(owned),
        "off": off,
        "limits": limits,
        "mutants": wrong,
        "passed": all(off[side][name] <= limit for side in judged for name, limit in limits.items())
        and all(value > least for value in wrong.values()),
    }


def _autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _rows(logits: Tensor, batch: Batch) -> Tensor:
    """Return the logits of the rows of a batch of one window, without padding."""
    return logits.detach()[0, : int(batch["num_rows"])].float()


def _outcome(lm: CausalLM, compute: Callable[[], Tensor], batch: Batch) -> _Outcome:
    lm.module.zero_grad(set_to_none=True)
    logits = compute()
    loss = weighted_loss(logits, batch["targets"], batch["weights"], float(batch["denominator"]))
    loss.backward()  # type: ignore[no-untyped-call]
    return _Outcome(_rows(logits, batch), float(loss.detach()), _gradients(lm))


def _gradients(lm: CausalLM) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in lm.module.named_parameters()
    }


def _sdpa(lm: CausalLM, batch: Batch) -> Tensor:
    """Return the logits of a batch by SDPA with a boolean mask, which scores every pair; in float32 step by step."""
    if not torch.is_autocast_enabled(batch["input_ids"].device.type):
        with sdpa_kernel(SDPBackend.MATH):
            return _by_sdpa(lm, batch)
    return _by_sdpa(lm, batch)


def _by_sdpa(lm: CausalLM, batch: Batch) -> Tensor:
    if isinstance(lm, BuiltIn):
        mask = tree_bool_mask(batch["subtree_ends"])
        logits: Tensor = lm.module(batch["input_ids"], batch["position_ids"], mask)
        return logits
    assert isinstance(lm, Pretrained)
    module: Any = lm.module
    used = lm.config._attn_implementation
    module.set_attn_implementation("sdpa")
    try:
        logits = module(**model_inputs(lm.config, batch)).logits
    finally:
        module.set_attn_implementation(used)
    return logits


def _alone(lm: CausalLM, batch: Batch, owned: Sequence[OwnExample], like: Tensor) -> _Outcome:
    """Return what the examples compute one by one, gradients added; logits are put where the window has their rows.

    Raises:
        KeyError: the window lacks a row of an example.
        AssertionError: no example has a row of the window.
    """
    parents, inputs, targets = (batch[name][0].tolist() for name in ("parents", "input_ids", "targets"))
    rows = {(parents[row], inputs[row], targets[row]): row for row in range(int(batch["num_rows"]))}
    lm.module.zero_grad(set_to_none=True)
    logits = torch.full_like(like, float("nan"))
    total = 0.0
    for example in owned:
        path = [-1]
        for pair in zip(example.tokens[:-1].tolist(), example.tokens[1:].tolist(), strict=True):
            path.append(rows[(path[-1], *pair)])
        tokens = torch.from_numpy(example.tokens).to(like.device, torch.int64)
        weights = torch.from_numpy(example.weights).to(like.device, torch.float32)
        found = lm.plain_logits(tokens[:-1])
        loss = weighted_loss(found, tokens[1:], weights, float(batch["denominator"]))
        loss.backward()  # type: ignore[no-untyped-call]
        logits[path[1:]] = found.detach().float()
        total += float(loss.detach())
    assert not bool(logits.isnan().any()), "a row of the window is no example's"
    return _Outcome(logits, total, _gradients(lm))


def mutants(batch: Batch) -> dict[str, Batch]:
    """Return a batch of one window with wrong masks: without its tree, and with one branch seen by the next one.

    Raises:
        ValueError: the window has no branch.
    """
    rows = int(batch["num_rows"])
    ends = batch["subtree_ends"]
    causal, leaking = ends.clone(), ends.clone()
    causal[0, :rows] = rows
    parents = batch["parents"][0].tolist()
    start = _branch(parents[:rows])
    if start == 0:
        raise ValueError("a window without branches")
    row = start - 1
    while row != parents[start]:  # the path down to the row before, below the common ancestor
        leaking[0, row] = ends[0, start]
        row = parents[row]
    return {"causal": batch | {"subtree_ends": causal}, "leaking": batch | {"subtree_ends": leaking}}


def _branch(parents: Sequence[int]) -> int:
    """Return the first row that is a later child of its parent; 0 where there is none."""
    return next((row for row in range(1, len(parents)) if -1 < parents[row] < row - 1), 0)
