"""Batches of windows in an order that is a pure function.

The order of an epoch depends on (seed, epoch) alone, and a position in it is one number: so a run can
stop anywhere and go on, with other workers or another number of ranks, and every window is used once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from dagpack_cli.errors import DagpackError, MismatchError, UsageError
from dagpack_cli.training.balance import deal_step
from dagpack_cli.training.reader import EMPTY, Batch, PackedWindows, collate

__all__ = ["PackedLoader", "window_order"]


def window_order(num_windows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of an epoch: windows sorted by a hash of (seed, epoch, window).

    A hash of our own and not a library's shuffle, whose stream may change with its version.
    """
    with np.errstate(over="ignore"):
        keys = np.arange(num_windows, dtype=np.uint64)
        for salt in (seed, epoch):
            keys = _mix(keys ^ _mix(np.full(num_windows, salt % 2**64, dtype=np.uint64)))
    return np.argsort(keys, kind="stable")


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return well-spread 64-bit numbers, one for one (the finaliser of splitmix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


class PackedLoader:
    """Batches of windows: shuffled, sharded over ranks, resumable to the batch.

    Every rank takes the same number of steps an epoch, and every window is in exactly one batch of one
    rank: what the last step lacks are windows without rows and of weight 0. A single process keeps a
    smaller last batch instead, unless ``fill`` asks for equal shapes.

    Args:
        windows: the dataset.
        batch_size: most windows of a batch, on each rank.
        max_cells: most cells (windows x length) of a batch; fewer windows are taken to keep it.
        length: rows of every batch; None pads each batch to its longest window.
        shuffle: whether the order is mixed; else it is that of the shards.
        seed: of the order.
        rank, world: of this process; by default what torch.distributed says, else 0 and 1.
        workers: processes that read ahead; they stay for all epochs.
        fill: whether a single process fills its last batch too.
        pin_memory: for copying to a GPU while it computes.
        balance: how a step's windows are dealt to ranks: ``rows`` as they come, for all are about equally
            full; ``cost`` so that ranks have about as many attention edges to compute (see
            `dagpack_cli.training.balance`), which differ more the longer windows are. A step has the same
            windows either way, so it trains the same; with ``batch_size`` 1 there is nothing to choose.

    ``state_dict`` says where the loader stands: after the last batch that was handed out. It is the same
    on every rank, and may be loaded with other ``workers``, ``world``, ``batch_size`` or ``balance``.

    Raises:
        UsageError: options that cannot work.
        DamageError: with ``balance="cost"`` and several ranks, a shard whose costs cannot be read.
    """

    def __init__(
        self,
        windows: PackedWindows,
        batch_size: int = 1,
        *,
        max_cells: int | None = None,
        length: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        workers: int = 0,
        fill: bool = False,
        pin_memory: bool = False,
        balance: Literal["rows", "cost"] = "rows",
    ) -> None:
        if balance not in ("rows", "cost"):
            raise UsageError("balance", str(balance), "rows or cost")
        self.windows, self.length, self.shuffle, self.seed = windows, length, shuffle, seed
        self.rank, self.world = _place(rank, world)
        self.batch_size = _windows_per_batch(windows, batch_size, max_cells, length)
        several = self.world > 1
        self._cursor = _Cursor(
            num_windows=len(windows),
            seed=seed if shuffle else None,
            batch_size=self.batch_size,
            rank=self.rank,
            world=self.world,
            fill=fill or several,
            costs=windows.attention_edges() if balance == "cost" and several and self.batch_size > 1 else None,
        )
        self._loader = _EpochLoader(
            _Fetcher(windows),
            batch_sampler=self._cursor,
            collate_fn=_Collate(length),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # a pass draws a number, which must not be one of the model's
        )

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._cursor.epoch

    @property
    def whole_epochs(self) -> DataLoader[Any]:
        """The plain torch loader within, for frameworks that keep their place by themselves.

        It has ``set_epoch``, gives a whole epoch each time, and an error of ours in place of a batch.
        """
        return self._loader

    def __len__(self) -> int:
        """Return the steps of a whole epoch: the same on every rank."""
        return len(self._cursor)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; nothing happens where the loader is already in it."""
        if epoch != self._cursor.epoch:
            self._cursor.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Yield what is left of the current epoch, then stand at the start of the next."""
        for batch in self._loader:
            if isinstance(batch, DagpackError):
                try:
                    raise batch
                finally:
                    del batch  # or the error and this frame would keep each other, and the workers
            self._cursor.advance()
            yield batch | {"metadata": self.windows.metadata}

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, in JSON values."""
        return {
            "version": 1,
            "fingerprints": self.windows.fingerprints,
            "partition": self.windows.partition,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader stood.

        Raises:
            MismatchError: its windows, or their order, were not these.
        """
        own = self.state_dict()
        for name in ("version", "fingerprints", "partition", "seed", "shuffle"):
            if state.get(name) != own[name]:
                hint = "resume with the same shards and seed"
                raise MismatchError("loader state", f"{name} {state.get(name)}", f"{own[name]}", hint=hint)
        self._cursor.epoch, self._cursor.position = int(state["epoch"]), int(state["position"])


@dataclass(slots=True)
class _Cursor:
    """Where a loader stands, and the batches from there on: the batch sampler of its `DataLoader`.

    Evaluated in the main process. It does not know the loader: a cycle would leave worker processes to
    the garbage collector, which may find them in a forked worker first.
    """

    num_windows: int
    seed: int | None  # None: in the order of the shards
    batch_size: int
    rank: int
    world: int
    fill: bool
    costs: npt.NDArray[np.int64] | None  # None: a step's windows are dealt as they come
    epoch: int = 0
    position: int = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the window numbers of this rank's batches from the current position on."""
        order = np.arange(self.num_windows)
        if self.seed is not None:
            order = window_order(self.num_windows, self.seed, self.epoch)
        for start in range(self.position, self.num_windows, self.batch_size * self.world):
            numbers = self._deal(order[start : start + self.batch_size * self.world])
            if self.fill:
                numbers += [EMPTY] * (self.batch_size - len(numbers))
            yield numbers

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return -(-self.num_windows // (self.batch_size * self.world))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch, self.position = epoch, 0

    def _deal(self, step: npt.NDArray[np.int64]) -> list[int]:
        """Return this rank's windows of those of a step."""
        if self.costs is None:
            mine = step[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
        else:
            mine = step[deal_step(self.costs[step].tolist(), self.world, self.batch_size)[self.rank]]
        numbers: list[int] = mine.tolist()
        return numbers

    def advance(self) -> None:
        """Go on by one step of all ranks."""
        self.position += self.batch_size * self.world
        if self.position >= self.num_windows:
            self.epoch, self.position = self.epoch + 1, 0


class _EpochLoader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        assert isinstance(self.batch_sampler, _Cursor)
        self.batch_sampler.set_epoch(epoch)


class _Fetcher(Dataset[Any]):
    """Windows, or the error in their place: torch would turn one that a worker raises into a RuntimeError."""

    def __init__(self, windows: PackedWindows) -> None:
        self._windows = windows

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]] | DagpackError:
        try:
            return self._windows.__getitems__(numbers)
        except DagpackError as error:
            return error


class _Collate:
    """`collate` with a length; a class at module level, so that workers can be sent it."""

    def __init__(self, length: int | None) -> None:
        self._length = length

    def __call__(self, windows: Sequence[Mapping[str, Any]] | DagpackError) -> Batch | DagpackError:
        return windows if isinstance(windows, DagpackError) else collate(windows, self._length)


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = world if world is not None else torch.distributed.get_world_size() if distributed else 1
    rank = rank if rank is not None else torch.distributed.get_rank() if distributed else 0
    if not 0 <= rank < world:
        raise UsageError("rank", str(rank), f"0 to {world - 1}, of a world of {world}")
    return rank, world


def _windows_per_batch(windows: PackedWindows, batch_size: int, max_cells: int | None, length: int | None) -> int:
    if batch_size < 1:
        raise UsageError("--batch-size", str(batch_size), "at least 1")
    width = windows.window_len if length is None else length
    if width < windows.window_len:
        raise UsageError("length", f"{width:,}", f"at least the {windows.window_len:,} rows a window may have")
    if max_cells is None:
        return batch_size
    if max_cells < width:
        raise UsageError("--max-cells", f"{max_cells:,}", f"at least {width:,}, the cells of one window")
    return min(batch_size, max_cells // width)
