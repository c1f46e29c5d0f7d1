"""Check and measure training on a GPU: ``python -m tests.gpu [--toy] [--minutes M] [--json FILE]``.

Exactness first, then speed, the shortest windows first, until the minutes are over; what is then left is named.
With ``--toy`` everything is small and runs on a CPU too, where segments stand in for FlexAttention: that shows
that the script works, and nothing about speed. Exit code 1 if a check failed or anything broke.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

from dagpack_cli.training import PackedWindows

from . import exact, graphs, models, speed
from .clock import Budget
from .corpora import LAYOUTS, Recipe, build_layouts
from .report import print_report

_FAMILIES = ("agent", "grpo")
_ROWS = {8_192: 400_000, 32_768: 800_000}  # of a corpus, by window length
_CHECKED_LENGTH = 2_048  # rows of the windows that are checked


@dataclass(frozen=True, slots=True)
class _Scale:
    """How large everything is, and how long it takes, about, on a large GPU.

    Attributes:
        lengths: of the windows that are timed.
        checked: rows of the windows that are checked.
        stack: the layers.
        changes: windows that one graph must serve.
        sampled: windows that are timed of each layout.
        repeats: of each.
        compiling: seconds that a graph takes to compile; 0 where it does not matter.
    """

    lengths: tuple[int, ...]
    checked: int
    stack: models.Stack
    changes: int
    sampled: int
    repeats: int
    compiling: float


_FULL = _Scale((8_192, 32_768), _CHECKED_LENGTH, models.ONE_BILLION, 20, 4, 5, 40.0)
_TOY = _Scale((256, 384), 384, models.TOY, 3, 1, 1, 0.0)


class _Run:
    """One run of the script: its shards, its models, what came out.

    Args:
        scale: of everything.
        device: where.
        folder: for shards.
        builds: where they are built meanwhile.
        budget: the time there is.
        path: of the JSON, which is written again after every step; None for none.
    """

    def __init__(
        self,
        scale: _Scale,
        device: torch.device,
        folder: Path,
        builds: Executor,
        budget: Budget,
        path: Path | None,
    ) -> None:
        self.scale, self.device, self.folder, self.budget, self.path = scale, device, folder, budget, path
        self.results: dict[str, Any] = {"machine": _machine(device), "checks": {}, "speed": {}, "skipped": []}
        checked = Recipe(family="gw", seq_len=scale.checked, rows=24 * scale.checked, vocabulary=512)
        recipes = {"checked": checked} | {
            f"{family} {length}": Recipe(family=family, seq_len=length, rows=_ROWS.get(length, 1))
            for length in scale.lengths
            for family in _FAMILIES
        }
        self._outs: dict[str, Future[dict[str, Path]]] = {
            name: builds.submit(build_layouts, recipe, folder, ("dag",) if name == "checked" else LAYOUTS)
            for name, recipe in recipes.items()
        }
        self._stacks: dict[int, Any] = {}

    def windows(self, corpus: str, layout: str = "dag") -> PackedWindows:
        """Return the windows of a corpus in a layout; waits for its build."""
        return PackedWindows(self._outs[corpus].result()[layout])

    @cached_property
    def small(self) -> dict[str, Any]:
        """The models that are checked, by name."""
        windows = self.windows("checked")
        return {
            "decoder": models.small_decoder(windows, self.device),
            "llama": models.small_llama(windows, self.device, self.folder / "llama"),
        }

    def stack(self, length: int) -> Any:
        """Return the layers that are timed at a length."""
        if length not in self._stacks:
            self._stacks.clear()
            self._stacks[length] = models.llama_stack(
                self.scale.stack, self.windows(f"{_FAMILIES[0]} {length}"), self.device
            )
        return self._stacks[length]

    def sample(self, family: str, length: int, layout: str) -> speed.Sample:
        """Return windows to time."""
        return speed.Sample(self.windows(f"{family} {length}", layout), self.scale.sampled, self.device)

    def do(self, part: str, name: str, step: Callable[[], dict[str, Any]], compiles: int = 0) -> None:
        """Take a step if there is time for it, and keep what it returns, or the error; write what there is."""
        seconds = self.scale.compiling * (compiles + 0.25)
        if not self.budget.allows(seconds):
            self.results["skipped"].append(f"{part}: {name}")
        else:
            print(f"{self.budget.spent:6.1f} s  {part}: {name}", file=sys.stderr, flush=True)
            try:
                self.results[part][name] = step()
            except Exception as error:  # the other steps may tell more, and a GPU's minutes are dear
                traceback.print_exc()
                self.results[part][name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        self.results["seconds"] = round(self.budget.spent, 1)
        if self.path is not None:
            self.path.write_text(json.dumps(self.results, indent=1) + "\n")


def _machine(device: torch.device) -> dict[str, Any]:
    found = {"device": str(device), "torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"name": properties.name, "gigabytes": f"{properties.total_memory / 1e9:.0f}"}
    return found


def _check(run: _Run) -> None:
    """Do the checks, the built-in decoder's first."""
    num, device = run.scale.changes, run.device
    for name in ("decoder", "llama"):
        for precision in ("float32", "bfloat16"):
            run.do("checks", f"{name}, {precision}", partial(_check_exact, run, name, precision), compiles=1)
        run.do("checks", f"{name}, one graph", partial(_check_one_graph, run, name), compiles=1)
    run.do("checks", "block masks", lambda: graphs.check_block_masks(run.windows("checked"), num, device))
    static = partial(graphs.check_static_masks, num=num, device=device)
    run.do("checks", "static masks", lambda: static(run.windows("checked")), compiles=1)


def _check_exact(run: _Run, name: str, precision: str) -> dict[str, Any]:
    return exact.check_exact(run.small[name], run.windows("checked"), precision, run.device)


def _check_one_graph(run: _Run, name: str) -> dict[str, Any]:
    return graphs.check_one_graph(run.small[name], run.windows("checked"), run.scale.changes, run.device)


def _measure(run: _Run) -> None:
    """Do the measures, shortest windows first."""
    size, device, repeats = run.scale.stack, run.device, run.scale.repeats
    for length in run.scale.lengths:
        torch._dynamo.reset()  # another length would be compiled for all lengths
        for number, (family, layout) in enumerate((family, layout) for family in _FAMILIES for layout in LAYOUTS):
            name, place = f"{family} {length} {layout}", (family, length, layout)
            compiles = int(number == 0)
            run.do("speed", f"layers, {name}", partial(_measure_layers, run, *place), compiles)
            run.do("speed", f"attention, {name}", partial(_measure_attention, run, *place), compiles)
        run.do("speed", f"causal {length}", partial(speed.measure_causal, size, length, device, repeats))
        for kind in speed.MASKS:
            compiles = int(kind == "compiled")
            if not compiles or length == run.scale.lengths[-1]:
                run.do("speed", f"mask, {length} {kind}", partial(_measure_mask, run, kind, length), compiles)
    run.do("checks", "FlexAttention in float64", partial(graphs.try_float64, device), compiles=1)


def _measure_layers(run: _Run, family: str, length: int, layout: str) -> dict[str, Any]:
    return speed.measure_layers(run.stack(length), run.sample(family, length, layout), run.device, run.scale.repeats)


def _measure_attention(run: _Run, family: str, length: int, layout: str) -> dict[str, Any]:
    return speed.measure_attention(run.scale.stack, run.sample(family, length, layout), run.device, run.scale.repeats)


def _measure_mask(run: _Run, kind: str, length: int) -> dict[str, Any]:
    sample = run.sample(_FAMILIES[0], length, "dag")
    return speed.measure_mask(kind, run.stack(length), sample, run.device, run.scale.repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--toy", action="store_true", help="everything small, on any device")
    parser.add_argument("--traced", action="store_true", help="what torch.compile traces is run as it is: for --toy")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing new is started")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    given = parser.parse_args(arguments)
    if not given.toy and not torch.cuda.is_available():
        parser.error("no GPU here; --toy runs on a CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    budget = Budget(given.minutes)
    torch.set_float32_matmul_precision("highest")  # TF32 off
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    with TemporaryDirectory(prefix="dagpack-gpu-") as name, ExitStack() as stack:
        if given.traced:
            stack.enter_context(mock.patch("torch.compile", partial(torch.compile, backend="eager")))
        builds = ThreadPoolExecutor(1)
        stack.callback(builds.shutdown, cancel_futures=True)
        run = _Run(_TOY if given.toy else _FULL, device, Path(name), builds, budget, given.json)
        _check(run)
        gc.freeze()  # or a look through all that was imported would take longer than what is measured
        stack.callback(gc.unfreeze)
        _measure(run)
    print_report(run.results)
    steps = [*run.results["checks"].values(), *run.results["speed"].values()]
    return int(any("error" in step or not step.get("passed", True) for step in steps))


if __name__ == "__main__":
    sys.exit(main())
