"""Training on shards: a reader, masks, a loss, a small model and a loop. The only rooms that import torch.

out/ -> reader.PackedWindows -> loader.PackedLoader -> batch of tensors
batch["subtree_ends"] -> masks.tree_block_mask | tree_bool_mask | tree_additive_mask
model(batch, mask) -> logits -> loss.weighted_loss(logits, targets, weights, denominator)
loop.train puts these together, in one process or several; every piece works alone, in a loop of your own.

For models of Hugging Face transformers: huggingface.model_inputs instead of masks by hand, pretrained to
fine-tune one, trainer.WindowTrainerMixin for their own trainers. check.check_windows holds windows against
the examples they stand for, each run alone.
"""

from __future__ import annotations

from importlib.util import find_spec

from dagpack_cli.errors import UsageError

if find_spec("torch") is None:
    raise UsageError("training", "torch is not installed", "torch 2.9 to 2.15", hint="pip install 'dagpack-cli[train]'")

from dagpack_cli.training.check import Checked, CheckOptions, check_windows, conclude, describe
from dagpack_cli.training.huggingface import (
    attention_mask_for,
    choose_attention,
    model_inputs,
    refuse_unsupported,
    register_segments,
)
from dagpack_cli.training.loader import PackedLoader
from dagpack_cli.training.loop import train
from dagpack_cli.training.loss import weighted_loss
from dagpack_cli.training.masks import (
    allowed,
    subtree_ends,
    tree_additive_mask,
    tree_block_mask,
    tree_bool_mask,
    tree_mask_mod,
)
from dagpack_cli.training.model import Decoder, DecoderConfig
from dagpack_cli.training.options import TrainOptions
from dagpack_cli.training.precision import float64_only
from dagpack_cli.training.pretrained import LoraOptions, PretrainedOptions
from dagpack_cli.training.reader import PackedWindows, collate
from dagpack_cli.training.reports import StepReport, TrainResult, summary
from dagpack_cli.training.trainer import WindowCollator, WindowTrainerMixin

__all__ = [
    "CheckOptions",
    "Checked",
    "Decoder",
    "DecoderConfig",
    "LoraOptions",
    "PackedLoader",
    "PackedWindows",
    "PretrainedOptions",
    "StepReport",
    "TrainOptions",
    "TrainResult",
    "WindowCollator",
    "WindowTrainerMixin",
    "allowed",
    "attention_mask_for",
    "check_windows",
    "choose_attention",
    "collate",
    "conclude",
    "describe",
    "float64_only",
    "model_inputs",
    "refuse_unsupported",
    "register_segments",
    "subtree_ends",
    "summary",
    "train",
    "tree_additive_mask",
    "tree_block_mask",
    "tree_bool_mask",
    "tree_mask_mod",
    "weighted_loss",
]
