"""What can be said of a call of `train` or `check` before torch is loaded, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagpack_cli.cli.shared import open_build
from dagpack_cli.cli.values import given
from dagpack_cli.console import Console
from dagpack_cli.errors import NoInputError, UsageError
from dagpack_cli.options import Parallel
from dagpack_cli.ranges import check_ranges

if TYPE_CHECKING:
    from dagpack_cli.manifest import Manifest

__all__ = ["SIZES", "check_check", "check_partition", "check_train", "has_validation"]

SIZES = ("width", "heads", "feed_forward", "layers")
_OF_MODEL = ("attention", "lora", "lora_alpha", "lora_targets", "gradient_checkpointing")
_OF_RUN = {
    "model": "the folder that the model is saved in",
    "resume": "the folder of the run to go on with",
    "checkpoint_every": "the folder that checkpoints are written to",
    "keep_checkpoints": "the folder that checkpoints are written to",
}


def check_train(values: Mapping[str, Any]) -> None:
    """Refuse numbers outside their range, options that exclude each other, and those that would do nothing.

    Args:
        values: of the options, by the names of the parameters of `train`; ``epochs`` is None where it is not given.

    Raises:
        UsageError: the first of them.
        NoInputError: no model is where it should be.
    """
    check_ranges(values)
    _check_model(values)
    if values["run"] is None:
        for name, expected in _OF_RUN.items():
            if values[name]:
                raise UsageError(_option(name), "no --run is given", expected, hint="--run DIR")
    if values["steps"] is not None and values["epochs"] is not None:
        raise UsageError("--epochs", "--steps is given too", "one of the two", hint="leave one of them out")
    if values["parallel"] is Parallel.FSDP and os.environ.get("WORLD_SIZE", "1") == "1":
        hint = "start several with torchrun, or leave it out"
        raise UsageError("--parallel fsdp", "one process has nobody to share a model with", "several", hint=hint)


def check_check(values: Mapping[str, Any]) -> None:
    """Refuse numbers outside their range, and options of a model without one.

    Raises:
        UsageError: the first of them.
        NoInputError: no model is where it should be.
    """
    check_ranges(values)
    if values["attention"] is not None and values["model"] is None:
        raise UsageError("--attention", "given without --model", "it with --model")
    _check_folder(values["model"])


def check_partition(partition: str, manifest: Manifest) -> None:
    """Raise `UsageError` where a build has no such partition."""
    if partition not in manifest.partitions:
        raise UsageError("--partition", partition, f"one of {', '.join(manifest.partitions)}")


def has_validation(shards: Sequence[str], outs: Sequence[Path], every: int, console: Console) -> bool:
    """Return whether all outputs have windows to validate on; tell where some have none.

    Args:
        shards: the outputs as they were given.
        outs: the same as local folders.
        every: steps between validations that are asked for; 0 if none is.
        console: hears of it.

    Raises:
        UsageError: validation is asked for, and there is nothing to validate on.
        NoInputError, DamageError: something is no output, or its manifest is damaged.
    """
    lacking = []
    for given_as, out in zip(shards, outs, strict=True):
        with open_build(out) as (_, manifest):
            if "val" not in manifest.partitions:
                lacking.append(given_as)
    if lacking and every:
        hint = "build it with --val-fraction, or leave --validate-every out"
        raise UsageError("--validate-every", f"{lacking[0]} has no partition val", "windows to validate on", hint=hint)
    if lacking and len(lacking) < len(outs):
        console.note(f"no validation: {lacking[0]} has no partition val, and all outputs need one")
    return not lacking


def _check_model(values: Mapping[str, Any]) -> None:
    """Refuse options of a model without one, sizes with one, and options of adapters without them."""
    has_model = values["model"] is not None
    if wrong := given(dict(values), SIZES if has_model else _OF_MODEL):
        expected = "one of the two, for it is a size of the built-in decoder" if has_model else "it with --model"
        raise UsageError(_option(next(iter(wrong))), f"given with{'' if has_model else 'out'} --model", expected)
    if values["lora"] is None and (adapters := given(dict(values), ("lora_alpha", "lora_targets"))):
        raise UsageError(_option(next(iter(adapters))), "given without --lora", "--lora RANK")
    _check_folder(values["model"])


def _check_folder(model: str | None) -> None:
    """Raise `NoInputError` where a model is a path, and no name, and nothing is there."""
    if model is not None and model.startswith((".", "/")) and not Path(model).exists():
        hint = "name the folder that holds config.json and the weights"
        raise NoInputError(f"--model {model}", "no such directory", "a folder in Hugging Face format", hint=hint)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
