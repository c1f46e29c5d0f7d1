"""The certificate: on your shards and your model, windows train exactly as their examples do one by one.

For a window, its logits, its summed loss and the gradient of every parameter are computed with the tree
mask, and again from the examples that it stands for, each run alone through the model's own causal
attention, without any mask or depth of ours. A control is computed as well: the window without its tree
mask, which must come out differently, or the check could not have failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dagpack_cli.errors import UsageError
from dagpack_cli.training.causal_lm import BuiltIn, CausalLM
from dagpack_cli.training.loader import window_order
from dagpack_cli.training.loss import weighted_loss
from dagpack_cli.training.model import DecoderConfig
from dagpack_cli.training.own_examples import OwnExample, own_examples
from dagpack_cli.training.precision import float64_only
from dagpack_cli.training.pretrained import PretrainedOptions, load_pretrained
from dagpack_cli.training.processes import join
from dagpack_cli.training.reader import Batch, PackedWindows, collate, to_device, whole_blocks

__all__ = ["CheckOptions", "Checked", "check_windows", "conclude", "describe"]

_COMPARED = 128  # rows of logits at a time
_LOGIT_CELLS = 1 << 27  # logits that are kept for comparing: a gigabyte in float64
_LOOKED_AT = 16  # windows, for each that is checked, in search of branches
_SMALL = 1e-3  # of the largest gradient: smaller ones are compared with this much of it
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
_ROUNDED = 1e-6  # where float32, in which shards store weights, cannot hold them


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is checked, and how closely.

    Attributes:
        windows: how many.
        seed: which; the same seed, the same windows.
        precision: of everything that is computed.
        device: cpu, cuda or auto.
    """

    windows: int = 4
    seed: int = 0
    precision: Literal["float64", "float32"] = "float64"
    device: str = "auto"

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.windows < 1:
            raise UsageError("--windows", str(self.windows), "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One window beside its own examples.

    Attributes:
        window: its number.
        rows: how many it has.
        examples: how many it stands for.
        logits: the largest difference of a logit, over the largest logit or 1.
        loss: difference of the summed loss, over the loss or 1.
        gradients: the largest difference of a parameter's gradient, over the largest of that parameter or a
            thousandth of the largest of all.
        parameter: name of the parameter with that difference.
        denominator: difference of what the loss is divided by, over what its examples give.
        missing: rows of examples that the window lacks.
        control: as ``logits``, of the window without its tree mask; None where that changes nothing, for
            all its rows are one path.
        tolerance: for each of the four.
    """

    window: int
    rows: int
    examples: int
    logits: float
    loss: float
    gradients: float
    parameter: str
    denominator: float
    missing: int
    control: float | None
    tolerance: float

    @property
    def worst(self) -> float:
        """Return the largest of the four differences; NaN if one is."""
        values = (self.logits, self.loss, self.gradients, self.denominator)
        return float("nan") if any(value != value for value in values) else max(values)

    @property
    def passed(self) -> bool:
        """Return whether the window trains as its examples do, and the check could have failed."""
        told_apart = self.control is None or self.control > 10 * self.tolerance
        return self.missing == 0 and self.worst <= self.tolerance and told_apart


def check_windows(
    windows: PackedWindows, model: DecoderConfig | PretrainedOptions, options: CheckOptions
) -> Iterator[Checked]:
    """Yield some windows of one build, each beside its own examples.

    Args:
        windows: of one output, objective ``counted``.
        model: the size of a built-in decoder with random weights, or a Hugging Face model.
        options: what to check.

    Raises:
        MismatchError: windows that are no mini-batches (``walk``, merge ``state``), or a model that does not fit.
        UsageError: several outputs, or no such device.

    Memory: the model, one gradient of it, and what one window's forward and backward pass take.
    """
    if len(windows.paths) != 1:
        raise UsageError("check", f"{len(windows.paths)} outputs", "one")
    dtype = {"float64": torch.float64, "float32": torch.float32}[options.precision]
    device = join(options.device).device
    chosen = _choose(windows, options)
    owned = own_examples(windows.paths[0], windows.manifest, windows.partition, chosen)
    torch.manual_seed(options.seed)
    lm = _model(model, windows, dtype, device)
    lm.module.eval()  # dropout would draw anew in every pass
    for number in chosen:
        yield _check(lm, windows, number, owned[number], dtype, device)


def _choose(windows: PackedWindows, options: CheckOptions) -> list[int]:
    """Return windows as a hash of the seed has them, those with branches first: only they need their mask."""
    branched: list[int] = []
    plain: list[int] = []
    for number in window_order(len(windows), options.seed, 0)[: _LOOKED_AT * options.windows].tolist():
        parents = windows[number]["parents"]
        is_path = bool((parents == np.arange(-1, len(parents) - 1)).all())
        (plain if is_path else branched).append(number)
        if len(branched) == options.windows:
            break
    return (branched + plain)[: options.windows]


def describe(checked: Checked) -> str:
    """Return a line about a window."""
    control = "all one path, so there is no control"
    if checked.control is not None:
        control = f"without the tree mask {checked.control:.1e}"
    missing = f"; {checked.missing:,} rows of its examples are missing" if checked.missing else ""
    examples = "example" if checked.examples == 1 else "examples"
    return (
        f"window {checked.window:,}: {checked.rows:,} rows against {checked.examples:,} {examples} alone: "
        f"logits differ by {checked.logits:.1e}, loss {checked.loss:.1e}, gradients {checked.gradients:.1e}"
        f" ({checked.parameter or 'all equal'}), denominator {checked.denominator:.1e}; {control}{missing}"
    )


def conclude(found: Sequence[Checked], precision: str) -> str:
    """Return what a check that passed has shown."""
    rows, examples = sum(checked.rows for checked in found), sum(checked.examples for checked in found)
    worst, allowed = max(checked.worst for checked in found), max(checked.tolerance for checked in found)
    noun, trains = ("window", "trains") if len(found) == 1 else ("windows", "train")
    return (
        f"exact: {len(found):,} {noun}, {rows:,} rows, {trains} as their {examples:,} examples do one by one; "
        f"largest difference {worst:.1e}, {allowed:.0e} allowed in {precision}"
    )


def _model(
    model: DecoderConfig | PretrainedOptions, windows: PackedWindows, dtype: torch.dtype, device: torch.device
) -> CausalLM:
    if isinstance(model, DecoderConfig):
        return BuiltIn(model, dtype, device)
    return load_pretrained(model, windows, dtype=dtype, device=device)


def _check(
    lm: CausalLM,
    windows: PackedWindows,
    number: int,
    examples: Sequence[OwnExample],
    dtype: torch.dtype,
    device: torch.device,
) -> Checked:
    window = windows[number]
    # A GPU's attention is compiled for one length; a CPU need not compute the rest of it.
    rows = windows.window_len if device.type == "cuda" else int(window["num_rows"])
    batch = to_device(collate([window], whole_blocks(rows)), device)
    contexts = _Contexts(window["inputs"].tolist(), window["parents"].tolist())
    stride = -(-len(window["inputs"]) * windows.vocab_size // _LOGIT_CELLS)
    kept = torch.arange(0, len(window["inputs"]), stride, device=device)
    lm.module.zero_grad(set_to_none=True)
    exactly: AbstractContextManager[Any] = float64_only() if dtype == torch.float64 else nullcontext()
    with exactly:
        logits = lm.logits(lm.module, batch)
        loss = weighted_loss(logits, batch["targets"], batch["weights"], 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        seen = logits.detach()[0, kept]
        del logits
        scales = _largest(lm)
        control = _control(lm, batch, seen, kept)
        apart = _Apart(contexts, seen, stride)
        total = 0.0
        for example in examples:
            total += _take_away(lm, example, apart, device)
    gradients, parameter = _left(lm, scales)
    found = float(loss.detach())
    return Checked(
        window=number,
        rows=len(window["inputs"]),
        examples=sum(example.count for example in examples),
        logits=apart.worst / max(1.0, float(seen.abs().max())),
        loss=abs(found - total) / max(1.0, abs(total)),
        gradients=gradients,
        parameter=parameter,
        denominator=_denominator_off(windows, float(window["denominator"]), examples),
        missing=apart.missing,
        control=control,
        tolerance=_tolerance(dtype, examples),
    )


def _denominator_off(windows: PackedWindows, found: float, examples: Sequence[OwnExample]) -> float:
    """Return by how much a window's denominator is off, relatively: a wrong one scales every gradient of a step."""
    if windows.negative_weights:
        expected = float(sum(example.supervised for example in examples))
    else:
        expected = float(sum(example.weights.sum() for example in examples))
    return abs(found - expected) / (abs(expected) or 1.0)


def _tolerance(dtype: torch.dtype, examples: Sequence[OwnExample]) -> float:
    """Return what may differ: rounding, and that of the stored weights where float32 cannot hold them."""
    exact = all(np.array_equal(example.weights, example.weights.astype(np.float32)) for example in examples)
    return _TOLERANCES[dtype] if exact else max(_TOLERANCES[dtype], _ROUNDED)


def _control(lm: CausalLM, batch: Batch, seen: Tensor, kept: Tensor) -> float | None:
    """Return how much logits change where every row sees all rows before it."""
    num_rows = int(batch["num_rows"])
    ends = batch["subtree_ends"].clone()
    ends[0, :num_rows] = num_rows
    if torch.equal(ends, batch["subtree_ends"]):
        return None
    with torch.no_grad():
        logits = lm.logits(lm.module, batch | {"subtree_ends": ends})[0, kept]
    return float((logits - seen).abs().max()) / max(1.0, float(seen.abs().max()))


def _take_away(lm: CausalLM, example: OwnExample, apart: _Apart, device: torch.device) -> float:
    """Run an example alone; compare its logits, subtract its gradient from what stands; return its loss."""
    tokens = torch.from_numpy(example.tokens.astype(np.int64)).to(device)
    weights = torch.from_numpy(example.weights).to(device)
    logits = lm.plain_logits(tokens[:-1])
    losses = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
    loss = (losses * weights.to(losses.dtype)).sum()
    (-loss).backward()  # type: ignore[no-untyped-call]
    apart.compare(example.tokens[:-1].tolist(), logits.detach())
    return float(loss.detach())


def _largest(lm: CausalLM) -> dict[str, float]:
    return {
        name: float(parameter.grad.abs().max()) if parameter.grad is not None else 0.0
        for name, parameter in lm.module.named_parameters()
        if parameter.requires_grad
    }


def _left(lm: CausalLM, scales: dict[str, float]) -> tuple[float, str]:
    """Return the largest gradient that is left of any parameter, over its scale, and whose it is."""
    least = _SMALL * max(scales.values(), default=0.0)
    worst, name = 0.0, ""
    for other, left in _largest(lm).items():
        ratio = left / (max(scales[other], least) or 1.0)
        if not ratio <= worst:  # NaN is the worst
            worst, name = ratio, other
    return worst, name


class _Contexts:
    """The rows of a window by all that they see: the path of input tokens that ends with their own."""

    def __init__(self, inputs: Sequence[int], parents: Sequence[int]) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        numbers: list[int] = []
        self.rows: dict[int, list[int]] = {}
        for row, (token, parent) in enumerate(zip(inputs, parents, strict=True)):
            above = numbers[parent] if parent >= 0 else 0
            number = self._numbers.setdefault((above, token), len(self._numbers) + 1)
            numbers.append(number)
            self.rows.setdefault(number, []).append(row)

    def follow(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """Yield the rows that see exactly the first one, two, … of some tokens; none where there are none."""
        number: int | None = 0
        for token in tokens:
            number = None if number is None else self._numbers.get((number, token))
            yield [] if number is None else self.rows[number]


class _Apart:
    """How far logits of a window are from those of sequences run alone."""

    def __init__(self, contexts: _Contexts, seen: Tensor, stride: int) -> None:
        self._contexts, self._seen, self._stride = contexts, seen, stride
        self.worst, self.missing = 0.0, 0

    def compare(self, inputs: Sequence[int], logits: Tensor) -> None:
        """Take in a sequence's logits (rows, vocabulary)."""
        pairs = []
        for at, rows in enumerate(self._contexts.follow(inputs)):
            self.missing += not rows
            pairs += [(at, row // self._stride) for row in rows if row % self._stride == 0]
        if pairs:
            alone, window = torch.tensor(pairs, device=logits.device).T
            for low in range(0, len(pairs), _COMPARED):
                some = slice(low, low + _COMPARED)
                gap = float((logits[alone[some]] - self._seen[window[some]]).abs().max())
                self.worst = gap if gap != gap else max(self.worst, gap)
