"""Checkpoints: one file that any number of processes can go on from, whatever way they share the model.

Parameters and optimiser state are stored whole and by name, as `torch.distributed.checkpoint.state_dict`
gathers them; only what is trained is stored, so that an adapter's checkpoint has no copy of its base.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dagpack_cli.errors import DamageError, MismatchError, NoInputError

__all__ = [
    "checkpoint_name",
    "load_checkpoint",
    "newest_checkpoint",
    "prune_checkpoints",
    "read_checkpoint",
    "save_checkpoint",
    "stored",
    "whole_state",
]

VERSION = 2
_ANEW = "begin anew in another --run; --checkpoint-every N writes checkpoints on the way"
_REMOVE = "remove it, and --resume takes the one before"


def checkpoint_name(step: int) -> str:
    """Return the file name of the checkpoint after a step."""
    return f"checkpoint-{step:08d}.pt"


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run.

    Raises:
        NoInputError: there is none.
    """
    found = sorted(run.glob("checkpoint-*.pt"))
    if not found:
        raise NoInputError(str(run), "no checkpoint to resume from", "checkpoint-*.pt", hint=_ANEW)
    return found[-1]


def prune_checkpoints(run: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints; none where it is 0."""
    if keep:
        for path in sorted(run.glob("checkpoint-*.pt"))[:-keep]:
            path.unlink()


def save_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, facts: Mapping[str, Any], *, leads: bool
) -> None:
    """Write a checkpoint: beside, synced, renamed. Every process calls this; the leading one writes.

    Args:
        path: of the file.
        module: the model, whole or sharded.
        optimizer: of it.
        facts: plain values that belong to it, and nothing that pickling would have to execute.
        leads: whether this process writes.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    state = {
        **facts,
        "version": VERSION,
        "model": get_model_state_dict(module, options=options),
        "optimizer": get_optimizer_state_dict(module, optimizer, options=options),
    }
    if not leads:
        return
    partial = path.with_name(f".{path.name}.partial")
    with stored(partial):
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


@contextmanager
def stored(partial: Path) -> Iterator[None]:
    """Write a file or folder that is renamed at the end; where that fails, remove what there is of it.

    Raises:
        OSError: of the disk, also where torch or safetensors make an error of their own of it.
    """
    try:
        yield
    except BaseException as error:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        number = _os_number(error)
        if number is None or isinstance(error, OSError):
            raise
        raise OSError(number, os.strerror(number), str(partial)) from error


def _os_number(error: BaseException | None) -> int | None:
    """Return the number of the operating system's error behind an error, None where there is none."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno
        if match := re.search(r"\(os error (\d+)\)", str(error)):
            return int(match[1])
        error = error.__cause__ or error.__context__
    return None


def whole_state(module: nn.Module) -> dict[str, Any]:
    """Return all parameters and buffers by name, whole, on the CPU; every process calls this, the first gets them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state: dict[str, Any] = get_model_state_dict(
        module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return state


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, its tensors mapped from the file. Nothing but plain values is unpickled.

    Raises:
        DamageError: not a checkpoint, or not a whole one.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError, struct.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DamageError(str(path), f"unreadable ({reason})", "a checkpoint", hint=_REMOVE) from None
    if not isinstance(state, dict) or "version" not in state:
        raise DamageError(str(path), "not written by dagpack train", "a checkpoint", hint=_REMOVE)
    if state["version"] != VERSION:
        raise MismatchError(
            str(path), f"a checkpoint of version {state['version']}", f"version {VERSION}", hint="train anew"
        )
    return state


def load_checkpoint(path: Path, state: Mapping[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's parameters and optimiser state in place; every process calls this.

    Args:
        path: of the file, for errors.
        state: of `read_checkpoint`.
        module: the model, whole or sharded.
        optimizer: of it.

    Raises:
        DamageError: a parameter that is trained is not in it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if missing := sorted(set(trained) - state["model"].keys()):
        found = f"no parameter {missing[0]}" + (f", nor {len(missing) - 1:,} more" if len(missing) > 1 else "")
        raise DamageError(str(path), found, "all that are trained", hint=_REMOVE)
    # Frozen parameters are not in it, so strictness has to be ours.
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, strict=False)
    set_model_state_dict(module, dict(state["model"]), options=options)
    set_optimizer_state_dict(module, optimizer, dict(state["optimizer"]), options=options)
