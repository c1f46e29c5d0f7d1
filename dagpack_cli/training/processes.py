"""The processes of one training run: alone, or started together by ``torchrun``, on one machine or several.

Every process computes its own windows of a step. The loss is divided by the step's global denominator, so
what processes add up is a sum, while DDP and FSDP2 give the mean of gradients: losses are multiplied by the
number of processes before their backward pass.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn

from dagpack_cli.errors import DiskError, UsageError

__all__ = ["Processes", "Spread", "join", "spread", "whole"]


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: of this one, from 0.
        size: how many there are.
        device: that this one computes on.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def add(self, values: Sequence[float]) -> list[float]:
        """Return every value summed over all processes, in float64."""
        if self.size == 1:
            return [float(value) for value in values]
        # float64 needs no more than a CPU, but NCCL sees nothing else than its device.
        summed = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        with _lost_peers_named():
            distributed.all_reduce(summed)
        result: list[float] = summed.tolist()
        return result

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            with _lost_peers_named():
                distributed.barrier()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what speaks to the other processes where nobody sees it: a backward pass, or a gathering of parameters.

        Raises:
            DiskError: another process is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_of_peers(error):
                raise
            raise _lost(error, "another process of the run is gone") from error


@contextmanager
def _lost_peers_named() -> Iterator[None]:
    """Raise `DiskError` for all that can go wrong in what does nothing but speak to the others."""
    try:
        yield
    except RuntimeError as error:
        raise _lost(error, "another process of the run is gone") from error


def _is_of_peers(error: RuntimeError) -> bool:
    """Tell whether an error came from speaking to other processes; gloo's have no kind of their own, but a name."""
    return isinstance(error, distributed.DistError) or "/gloo/" in str(error)


def _lost(error: RuntimeError, found: str) -> DiskError:
    """Return that the others cannot be reached: what ended them is in their own words."""
    line = (str(error).splitlines() or [""])[0]
    reason = re.sub(r"^\[\S+:\d+\] ", "", line).partition(". This is ")[
        0
    ]  # without a place in gloo's source, and advice
    hint = "look at what it said; --resume goes on from the newest checkpoint"
    return DiskError("torchrun", f"{found} ({reason})", hint=hint)


def join(device: str) -> Processes:
    """Return this process's place; with ``torchrun``'s environment, meet the others first.

    They stay together until the process ends, for a group that is left cannot be formed again.

    Args:
        device: cpu, cuda or auto, which is cuda where there is one. Several processes on a machine take
            one GPU each.

    Raises:
        UsageError: no such device, or fewer GPUs than processes.
        DiskError: the others were not met.
    """
    together = distributed.is_initialized()
    several = together or int(os.environ.get("WORLD_SIZE", "1")) > 1
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")) if several else None)
    if not several:
        return Processes(0, 1, chosen)
    if not together:
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        try:
            distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        except distributed.DistError as error:
            raise _lost(error, "the other processes of the run were not met") from error
        atexit.register(_leave)
    return Processes(distributed.get_rank(), distributed.get_world_size(), chosen)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _device(name: str, place: int | None) -> torch.device:
    """Return a device by name; of several GPUs, the one of a process's place on its machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError("--device", name, "cpu, cuda or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError("--device", name, "cpu, cuda or auto")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise UsageError("--device", name, "a device that is here", hint="--device cpu")
    if place is None:
        return device
    if place >= torch.cuda.device_count():
        raise UsageError("torchrun", f"process {place} of a machine with {torch.cuda.device_count()} GPUs", "one each")
    return torch.device("cuda", place)


@dataclass(frozen=True, slots=True)
class Spread:
    """A model as its processes share it.

    Attributes:
        call: what computes the forward pass.
        partly: a context in which a backward pass need not be the last of its step.
    """

    call: Callable[..., Any]
    partly: Callable[[], AbstractContextManager[Any]]


def spread(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    processes: Processes,
    parallel: Literal["ddp", "fsdp"],
    *,
    compute: torch.dtype | None,
    sparse: bool,
) -> Spread:
    """Return a model that all processes train together.

    Args:
        module: the whole model, equal on every process, on its device.
        blocks: its layers, which FSDP2 gathers one at a time.
        processes: of the run.
        parallel: ``ddp`` keeps the whole model everywhere; ``fsdp`` a part, in place, its parameters then
            being DTensors.
        compute: for FSDP2, the dtype of activations where it is not the parameters'; gradients are reduced
            in float32.
        sparse: whether a forward pass may leave some parameters out, as a mixture of experts does.
    """
    if processes.size == 1:
        return Spread(module, nullcontext)
    if parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        wrapped = DistributedDataParallel(module, find_unused_parameters=sparse)
        return Spread(wrapped, wrapped.no_sync)
    # A second to import, for those who need it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(processes.device.type, (processes.size,))
    policy = MixedPrecisionPolicy() if compute is None else MixedPrecisionPolicy(compute, torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    return Spread(module, nullcontext)


def whole(value: Tensor) -> float:
    """Return a scalar that may be spread over processes."""
    return float(value.full_tensor() if hasattr(value, "full_tensor") else value)
