"""The loss of a run for eyes: a picture at its end, and TensorBoard's log while it goes, where that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from dagpack_cli.training.reports import StepReport

__all__ = ["Board", "draw_curve", "open_board"]


class Board(Protocol):
    """Who is shown each step."""

    def show(self, report: StepReport) -> None:
        """Take in a step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a run that was cut showed after its last checkpoint will be shown again.
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def show(self, report: StepReport) -> None:
        values = {
            "train/loss": report.loss,
            "train/learning_rate": report.learning_rate,
            "train/gradient_norm": report.gradient_norm if report.loss is not None else None,
            "train/rows_per_second": report.rows / report.seconds if report.seconds else None,
            "train/pairs_per_second": report.pairs / report.seconds if report.seconds else None,
            "val/loss": report.val_loss,
        }
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, report.step)

    def close(self) -> None:
        self._writer.close()


class _NoBoard:
    def show(self, report: StepReport) -> None:
        """Nothing is installed that could show it."""

    def close(self) -> None:
        """Nothing is open."""


def open_board(run: Path | None, step: int) -> Board:
    """Return TensorBoard's log in ``run/tensorboard``; one that shows nothing where it is not installed.

    Args:
        run: folder of the run; None for no log.
        step: the run's last step so far.
    """
    if run is None or find_spec("tensorboard") is None:
        return _NoBoard()
    return _TensorBoard(run / "tensorboard", step)


def draw_curve(run: Path) -> Path | None:
    """Draw ``run/steps.jsonl`` as ``run/loss.png``: the loss of every step, and the val loss where it was looked at.

    Returns:
        the picture; None where Matplotlib is not installed, or no step has a loss.
    """
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with (run / "steps.jsonl").open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    series = {name: list(_points(lines, name)) for name in ("loss", "val_loss")}
    if not series["loss"]:
        return None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = {"loss": ("train", "-" if len(series["loss"]) > 1 else "o"), "val_loss": ("val", "o-")}
    for name, points in series.items():
        if points:
            axes.plot(*zip(*points, strict=True), labels[name][1], label=labels[name][0], markersize=3, linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a unit of weight")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    path = run / "loss.png"
    partial = run / ".loss.png.partial"
    figure.savefig(partial, format="png", dpi=120)
    partial.replace(path)
    return path


def _points(lines: Iterable[dict[str, Any]], name: str) -> Iterable[tuple[int, float]]:
    for line in lines:
        if line[name] is not None:
            yield line["step"], line[name]
