"""The loss for eyes: a picture of every step, and TensorBoard's log of the same numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dagpack_cli.training.curve import draw_curve, open_board
from dagpack_cli.training.reports import StepReport

REPORT = StepReport(
    step=1, epoch=0, loss=2.0, learning_rate=0.1, gradient_norm=1.5, denominator=8.0, rows=20, distinct_pairs=10,
    pairs=40, seconds=0.5,
)  # fmt: skip


def write(run: Path, reports: list[StepReport]) -> None:
    """Write a run's log."""
    (run / "steps.jsonl").write_text("".join(json.dumps(asdict(report)) + "\n" for report in reports))


def ink(path: Path) -> np.ndarray:
    """Return which pixels of a picture have the colour of the first line that Matplotlib draws."""
    image = pytest.importorskip("matplotlib.image", reason="Matplotlib").imread(path)
    blue = np.array([0x1F, 0x77, 0xB4]) / 255
    marked: np.ndarray = np.abs(image[..., :3] - blue).max(-1) < 0.1
    return marked


def test_the_curve_falls_as_the_loss_does(tmp_path: Path) -> None:
    """The line goes down where the loss does, and up where it goes up; a step without a loss is left out."""
    pytest.importorskip("matplotlib", reason="Matplotlib")
    for name, values in {"down": (3.0, 2.0, None, 1.0), "up": (1.0, 2.0, None, 3.0)}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, [replace(REPORT, step=at, loss=loss) for at, loss in enumerate(values, 1)])
        path = draw_curve(tmp_path / name)
        assert path == tmp_path / name / "loss.png"
        rows, columns = np.nonzero(ink(path)[:, 100:780])
        slope = np.polyfit(columns, rows, 1)[0]  # rows count downwards
        assert slope > 0.2 if name == "down" else slope < -0.2
        assert not (tmp_path / name / ".loss.png.partial").exists()


def test_nothing_to_draw(tmp_path: Path) -> None:
    """A run in which nothing trains has no picture."""
    write(tmp_path, [replace(REPORT, loss=None)])
    assert draw_curve(tmp_path) is None
    assert not (tmp_path / "loss.png").exists()


def test_tensorboard_shows_every_step_once(tmp_path: Path) -> None:
    """Losses, rates and throughput by step; what a run showed after its last checkpoint is shown anew."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard")
    board = open_board(tmp_path, 0)
    for step in (1, 2, 3):
        board.show(replace(REPORT, step=step, loss=10.0 - step, val_loss=7.0 if step == 2 else None))
    board.close()
    board = open_board(tmp_path, 2)
    board.show(replace(REPORT, step=3, loss=5.0))
    board.show(replace(REPORT, step=4, loss=None))
    board.close()
    events = module.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert shown["train/loss"] == [(1, 9.0), (2, 8.0), (3, 5.0)]
    assert shown["val/loss"] == [(2, 7.0)]
    assert shown["train/pairs_per_second"] == [(step, 80.0) for step in (1, 2, 3, 4)]


def test_no_folder_no_board(tmp_path: Path) -> None:
    """Without a run nothing is written anywhere."""
    board = open_board(None, 0)
    board.show(REPORT)
    board.close()
    assert not list(tmp_path.iterdir())
