"""Windows in Hugging Face's trainers: the steps are those of the examples run alone, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import write_examples
from commands import build
from exactness import random_examples
from torch import Tensor

from dagpack_cli.errors import UsageError
from dagpack_cli.training import PackedWindows, WindowCollator, WindowTrainerMixin, float64_only
from dagpack_cli.training.loader import window_order
from dagpack_cli.training.own_examples import own_examples

transformers: Any = pytest.importorskip("transformers", reason="the extra hf")
pytest.importorskip("accelerate", reason="accelerate, which Trainer needs")
models: Any = pytest.importorskip("huggingface_models", reason="the extra hf")

# What trl calls an option that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")

RATE, SEED = 1e-2, 3


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with an odd number of windows to train on, and some to validate on."""
    folder = tmp_path_factory.mktemp("trainer")
    examples = [example for seed in range(12) for example in random_examples(seed)]
    write_examples(folder / "corpus", examples)
    build(folder / "out", "--seq-len", "12", "--val-fraction", "0.2", "--seed", "2", corpus=folder / "corpus")
    assert len(PackedWindows(folder / "out")) % 2 == 1
    return folder / "out"


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a trainer's arguments: plain AdamW, so that an oracle can do the same."""
    return {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3,
        "num_train_epochs": 2, "learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0,
        "max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "seed": SEED,
        "use_cpu": True, "disable_tqdm": True,
    } | changes  # fmt: skip


def trainer_of(kind: str, model: Any, folder: Path, train: PackedWindows, **named: Any) -> Any:
    """Return one of the two trainers with our mixin before it."""
    changes = named.pop("changes", {})
    if kind == "Trainer":
        make: Any = type("WindowTrainer", (WindowTrainerMixin, transformers.Trainer), {})
        return make(model, transformers.TrainingArguments(**settings(folder, **changes)), train_dataset=train, **named)
    trl = pytest.importorskip("trl", reason="trl, for its SFTTrainer")
    make = type("WindowTrainer", (WindowTrainerMixin, trl.SFTTrainer), {})
    arguments = trl.SFTConfig(**settings(folder, bf16=False, gradient_checkpointing=False, **changes))
    return make(model, arguments, train_dataset=train, processing_class=tokenizer(), **named)


def tokenizer() -> Any:
    """Return a tokenizer, which SFTTrainer wants and windows have no need of."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def losses_alone(model: Any, windows: PackedWindows, number: int) -> tuple[Tensor, float]:
    """Return the weighted sum of losses of a window's examples, each run alone, and their weight."""
    path, manifest = windows.paths[0], windows.manifest
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for example in own_examples(path, manifest, windows.partition, [number])[number]:
        tokens = torch.from_numpy(example.tokens.astype(np.int64))
        logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        for at, target_weight in enumerate(example.weights.tolist()):
            total = total - target_weight * torch.log_softmax(logits[at], -1)[tokens[at + 1]]
        weight += float(example.weights.sum())
    return total, weight


def train_alone(model: Any, windows: PackedWindows) -> list[float]:
    """Take the same steps by hand; return their losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for epoch in range(2):
        order = window_order(len(windows), SEED, epoch).tolist()
        for start in range(0, len(order), 6):
            parts = [losses_alone(model, windows, number) for number in order[start : start + 6]]
            loss = torch.stack([part[0] for part in parts]).sum() / sum(part[1] for part in parts)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("attention", ["sdpa", "eager", "dagpack_segments"])
@pytest.mark.parametrize("kind", ["Trainer", "SFTTrainer"])
def test_a_trainer_takes_the_steps_of_examples_alone(out: Path, tmp_path: Path, kind: str, attention: str) -> None:
    """Accumulated, over two epochs, with weights: losses and parameters are those of the examples one by one."""
    windows = PackedWindows(out)
    with float64_only():
        alone = models.tiny_model("llama", "sdpa")
        expected = train_alone(alone, windows)
        model = models.tiny_model("llama", attention)
        trainer = trainer_of(kind, model, tmp_path, windows)
        trainer.train()
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert found == pytest.approx(expected, rel=1e-6)  # the log rounds
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["Trainer", "SFTTrainer"])
def test_evaluation_is_one_sum_over_one_denominator(out: Path, tmp_path: Path, kind: str) -> None:
    """Batches of different weight: the mean of their means would be another number."""
    val = PackedWindows(out, partition="val")
    with float64_only():
        model = models.tiny_model("llama", "sdpa")
        parts = [losses_alone(model, val, number) for number in range(len(val))]
        expected = float(torch.stack([part[0] for part in parts]).sum().detach()) / sum(part[1] for part in parts)
        trainer = trainer_of(
            kind, model, tmp_path, PackedWindows(out), eval_dataset=val, changes={"per_device_eval_batch_size": 2}
        )
        assert len(val) > 2
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-12)
        named = trainer.evaluate({"a": val, "b": PackedWindows(out)})
    assert named["eval_a_loss"] == pytest.approx(expected, rel=1e-12)
    assert named["eval_b_loss"] != named["eval_a_loss"]


def _stop_after_three(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
    """End training where a time limit might."""
    control.should_training_stop = state.global_step == 3


def test_a_trainer_resumes(out: Path, tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, the trainer's own resuming skips the batches it has had."""
    states = []
    for folder, steps in (("whole", 4), ("cut", 3)):
        changes = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
        model = models.tiny_model("llama", "sdpa")
        trainer = trainer_of("Trainer", model, tmp_path / folder, PackedWindows(out), changes=changes)
        if steps == 4:
            trainer.train()
        else:
            stop: Any = type("Stop", (transformers.TrainerCallback,), {"on_step_end": _stop_after_three})
            trainer.add_callback(stop())
            trainer.train()
            assert trainer.state.global_step == 3
            model = models.tiny_model("llama", "sdpa", seed=9)
            trainer = trainer_of("Trainer", model, tmp_path / folder, PackedWindows(out), changes=changes)
            trainer.train(resume_from_checkpoint=str(tmp_path / folder / "checkpoint-3"))
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-12, atol=1e-14)


def test_what_cannot_be_exact_is_refused(out: Path, tmp_path: Path) -> None:
    """Another dataset, a metric that needs labels, smoothing, a model that cannot take a tree."""
    windows = PackedWindows(out)
    model = models.tiny_model("llama", "sdpa")
    with pytest.raises(UsageError, match="dataset: list"):
        trainer_of("Trainer", model, tmp_path, [{"input_ids": [1, 2]}])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="compute_metrics"):
        trainer_of("Trainer", model, tmp_path, windows, compute_metrics=lambda _: {})
    with pytest.raises(UsageError, match="label_smoothing_factor"):
        trainer_of("Trainer", model, tmp_path, windows, changes={"label_smoothing_factor": 0.1})
    with pytest.raises(UsageError, match=r"[Mm]amba"):
        trainer_of("Trainer", models.tiny_model("mamba", "eager"), tmp_path, windows)


def test_the_collator_makes_batches_for_loops_of_ones_own(out: Path) -> None:
    """Tensors of one length, and no mask."""
    windows = PackedWindows(out)
    batch = WindowCollator(length=128)([windows[0], windows[1]])
    assert batch["input_ids"].shape == (2, 128)
    assert all(isinstance(value, Tensor) for value in batch.values())
