"""Windows in `transformers.Trainer` and `trl.SFTTrainer`: a mixin in front of either.

::

    class WindowTrainer(WindowTrainerMixin, Trainer): ...

    WindowTrainer(model, args, train_dataset=PackedWindows("out")).train()

What it changes, and why: batches come from `PackedLoader`, for accelerate would repeat windows to make
ranks even; the loss is the weighted one, divided once by the denominator of the whole step, for `Trainer`
counts labels; and there are no labels, for models would shift them. Optimiser, schedule, logging,
checkpoints, callbacks and resuming are the trainer's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dagpack_cli.errors import DagpackError, UsageError
from dagpack_cli.training.huggingface import model_inputs, refuse_unsupported
from dagpack_cli.training.loader import PackedLoader
from dagpack_cli.training.loss import weighted_loss
from dagpack_cli.training.reader import Batch, PackedWindows, collate, whole_blocks

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

__all__ = ["WindowCollator", "WindowTrainerMixin"]


class WindowCollator:
    """`collate`, as a trainer's ``data_collator``: tensors alone, and no mask, which would not survive a worker.

    Args:
        length: rows of every batch; None pads each batch to its longest window. A GPU wants one length, a
            multiple of 128.
    """

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def __call__(self, windows: Sequence[Mapping[str, Any]]) -> Batch:
        """Return some windows of `PackedWindows` as a batch."""
        return collate(windows, self.length)


class WindowTrainerMixin(_Base):
    """Makes a `Trainer` or `SFTTrainer` train on windows, exactly; stands before it in the bases.

    ``train_dataset`` and ``eval_dataset`` are `PackedWindows`. The loss that is logged is the step's weighted
    sum over its denominator; ``eval_loss`` is that of the whole dataset. The attention is the model's:
    load it with ``attn_implementation=choose_attention(config, device)``.

    Raises:
        UsageError: another kind of dataset, DataParallel, label smoothing, ``compute_metrics``, or a model
            that cannot take a tree mask.
    """

    def __init__(self, model: Any = None, args: Any = None, **named: Any) -> None:
        if args is not None:
            args.remove_unused_columns = False  # a window's columns are not the model's arguments
        named.setdefault("data_collator", WindowCollator())
        names = [name for name in ("train_dataset", "eval_dataset") if named.get(name) is not None]
        given = {name: named[name] for name in names}
        if hasattr(args, "dataset_kwargs"):
            # SFTTrainer takes datasets' own classes alone, and would tokenise them; it never reads these.
            args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
            named |= dict.fromkeys(names, _stand_in())
        super().__init__(model, args, **named)
        for name, dataset in given.items():
            setattr(self, name, dataset)
        # The loss is divided by the denominator of all batches of a step, so the trainer must not divide again.
        self.model_accepts_loss_kwargs = True
        if hasattr(self, "loss_is_scaled_for_ga"):
            self.loss_is_scaled_for_ga = True
        self._check()

    def _check(self) -> None:
        wrong = {
            "label_smoothing_factor": (self.args.label_smoothing_factor, 0),
            "compute_metrics": (self.compute_metrics, None),
            "compute_loss_func": (self.compute_loss_func, None),
            "packing": (getattr(self.args, "packing", False), False),
        }
        for name, (found, expected) in wrong.items():
            if found != expected:
                raise UsageError(name, str(found), f"{expected}: windows are packed and bring their loss")
        if self.args.n_gpu > 1:
            raise UsageError("trainer", f"DataParallel over {self.args.n_gpu} GPUs", "a process each", hint="torchrun")
        given = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        for dataset in (self.train_dataset, *given):
            if dataset is not None:
                refuse_unsupported(self._window_config, longest_depth=_windows_of(dataset).num_positions - 1)

    @property
    def _window_config(self) -> Any:
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model().config if hasattr(model, "peft_config") else model.config

    def _window_loader(self, dataset: Any, batch_size: int, *, shuffle: bool) -> DataLoader[Any]:
        windows = _windows_of(dataset)
        fixed = self.args.device.type == "cuda" or self._window_config._attn_implementation == "flex_attention"
        loader = PackedLoader(
            windows,
            batch_size,
            length=whole_blocks(windows.window_len) if fixed else None,
            shuffle=shuffle,
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            rank=self.args.process_index,
            world=self.args.world_size,
            workers=self.args.dataloader_num_workers,
            fill=fixed,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )
        return loader.whole_epochs

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return this rank's batches: every window once an epoch, as many on every rank."""
        return self._window_loader(self.train_dataset, self.args.per_device_train_batch_size, shuffle=True)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the batches of a step, and the step's denominator over all of them and all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in batches:
            if isinstance(batch, DagpackError):
                raise batch
        return batches, self._add_over_ranks(sum(float(batch["denominator"].sum()) for batch in batches))

    def _add_over_ranks(self, value: float) -> Tensor:
        total = torch.tensor(value, dtype=torch.float64, device=self.args.device)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(total)
        return total

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return a batch's share of the step's loss, times the ranks, which average gradients.

        Args:
            model: perhaps wrapped.
            inputs: of `collate`, on the model's device.
            return_outputs: also give the model's outputs.
            num_items_in_batch: the step's denominator; None is the batch's own.
        """
        config = self._window_config
        outputs = model(**model_inputs(config, inputs, dtype=next(model.parameters()).dtype))
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        denominator, ranks = num_items_in_batch, self.args.world_size
        if denominator is None:
            denominator, ranks = inputs["denominator"].sum(), 1
        # A step in which nothing trains has a loss of 0 and no gradient.
        divisor = torch.where(denominator == 0, 1.0, denominator).to(logits.device)
        loss = weighted_loss(logits, inputs["targets"], inputs["weights"], divisor) * ranks
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the loss over a whole dataset: one sum over one denominator, not a mean of batches' means.

        Args:
            eval_dataset: `PackedWindows`, or several by name; None is the trainer's.
            ignore_keys: of no use here.
            metric_key_prefix: before the names of the results.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, dict):
            found: dict[str, float] = {}
            for name, one in dataset.items():
                found |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        total, denominator = self._whole_loss(dataset)
        metrics = {f"{metric_key_prefix}_loss": total / denominator if denominator else float("nan")}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _whole_loss(self, dataset: Any) -> tuple[float, float]:
        """Return the weighted sum of losses over a dataset, and its denominator, over all ranks."""
        loader = self._window_loader(dataset, self.args.per_device_eval_batch_size, shuffle=False)
        assert self.model is not None
        model = self._wrap_model(self.model, training=False)
        was_training = model.training
        model.eval()
        total = denominator = 0.0
        for batch in loader:
            if isinstance(batch, DagpackError):
                raise batch
            share = float(batch["denominator"].sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                mean = self.compute_loss(model, self._prepare_inputs(batch))
            total, denominator = total + float(mean) * share, denominator + share
        model.train(was_training)
        return float(self._add_over_ranks(total)), float(self._add_over_ranks(denominator))


def _stand_in() -> Any:
    """Return a dataset of one row for a trainer that asks for one before it starts."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})


def _windows_of(dataset: Any) -> PackedWindows:
    if not isinstance(dataset, PackedWindows):
        raise UsageError("dataset", type(dataset).__name__, "PackedWindows", hint='PackedWindows("OUT")')
    return dataset
