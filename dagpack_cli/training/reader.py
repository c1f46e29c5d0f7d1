"""From shards to batches: a map-style dataset of windows, and a loader whose order is a pure function.

The order of an epoch depends on (seed, epoch) alone, and a position in it is one number: so a run can
stop anywhere and go on, with other workers or another number of ranks, and every window is used once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dagpack_cli.errors import DagpackError, DamageError, MismatchError, UsageError
from dagpack_cli.manifest import Manifest, refuse_links
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.remote import local_output
from dagpack_cli.shards import WindowReader
from dagpack_cli.storage import Generation, open_current
from dagpack_cli.training.balance import deal_step
from dagpack_cli.trie import open_trie
from dagpack_cli.verify import check_files

__all__ = ["IGNORED_TARGET", "PackedLoader", "PackedWindows", "collate"]

Batch = dict[str, Any]
IGNORED_TARGET = -100  # what torch's cross entropy leaves out
EMPTY = -1  # the number of a window without rows, which fills the last step of an epoch


class PackedWindows(Dataset[dict[str, Any]]):
    """The windows of one build, or of several that fit one another, as a map-style dataset.

    ``windows[i]`` is a dict of numpy arrays (n,): ``inputs, targets, depths, parents, counts, segments,
    weights`` (as the objective has them), ``owned, subtree_ends``, and the numbers ``num_rows, window,
    denominator``. The generation stays in place while the dataset lives.

    Args:
        outs: output directories, or their URIs: those are fetched into the user's cache first.
        partition: train or val.
        objective: ``counted`` uses weights as they are, ``unique`` gives each transition one vote; None
            takes the builds' own.
        checksums: read every byte of the builds first and compare it with the manifest.

    Raises:
        NoInputError: nothing is published there.
        MismatchError: builds with different tokenizers, lengths, partitions or objectives.
        DamageError: a file has another size, or with ``checksums`` another content, than was written.
        UsageError: no such partition, or ``unique`` with negative weights.
    """

    def __init__(
        self,
        *outs: Path | str,
        partition: str = "train",
        objective: Literal["counted", "unique"] | None = None,
        checksums: bool = False,
    ) -> None:
        if not outs:
            raise UsageError("PackedWindows", "no directory", "at least one output of dagpack build")
        generations: list[Generation] = []
        self._release: weakref.finalize[Any, PackedWindows] | None = weakref.finalize(self, _close, generations)
        generations.extend(open_current(local_output(out)) for out in outs)
        paths = [generation.path for generation in generations]
        manifests = [
            Manifest.from_bytes(generation.manifest_bytes, generation.path / "manifest.json")
            for generation in generations
        ]
        self.partition = partition
        self.manifest = manifests[0]
        _check_alike(paths, manifests, partition, objective)
        self.objective = objective or self.manifest.pack.objective
        packing = [manifest.packing[partition] for manifest in manifests]
        # Of all partitions, so that train and val losses are divided alike.
        self.negative_weights = any(
            part["negative_weights"] for manifest in manifests for part in manifest.packing.values()
        )
        if self.negative_weights and self.objective == "unique":
            raise UsageError("--objective unique", "some example weights are negative", hint="--objective counted")
        for path, manifest in zip(paths, manifests, strict=True):
            refuse_links(path, manifest)
            _check_files(path, manifest, checksums=checksums)
        self._readers = [
            WindowReader([path / name for name in manifest.shards(partition)], self.window_len, part["windows"])
            for path, manifest, part in zip(paths, manifests, packing, strict=True)
        ]
        self._ends = np.cumsum([len(reader) for reader in self._readers])
        self.fingerprints = [manifest.fingerprint for manifest in manifests]
        self.paths = paths

    @property
    def window_len(self) -> int:
        """Most rows of a window."""
        return self.manifest.pack.capacity

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.manifest.vocab_size

    @property
    def num_positions(self) -> int:
        """One more than the deepest row may have above it: the positions that a model has to know.

        Read from the tries, whose paths a split or truncated one does not exceed.
        """
        deepest = 0
        for path in self.paths:
            trie = open_trie(path / "trie" / self.partition)
            ends = trie.depths + np.diff(trie.offsets)
            deepest = max(deepest, int(ends.max(initial=0)) - 1)
        return min(deepest, self.manifest.pack.seq_len)

    @property
    def metadata(self) -> dict[str, Any]:
        """What every batch carries: where its windows come from."""
        return {
            "partition": self.partition,
            "tokenizer_sha256": self.manifest.tokenizer["sha256"],
            "fingerprints": self.fingerprints,
            "objective": self.objective,
        }

    def attention_edges(self) -> npt.NDArray[np.int64]:
        """Return what attention computes for every window, shape (len,): its pairs of a row and one it sees.

        Read from the shards' column of it; no row is read.

        Raises:
            DamageError: a shard is missing or damaged.
        """
        return np.concatenate([reader.attention_edges() for reader in self._readers])

    @property
    def column_names(self) -> list[str]:
        """Names of what a window has, for trainers that ask a dataset."""
        return list(_empty_window())

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the locks behind: a worker reads while its parent holds them."""
        return self.__dict__ | {"_release": None}

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a window; -1 is a window without rows."""
        if number == EMPTY:
            return _empty_window()
        build = int(np.searchsorted(self._ends, number, side="right"))
        if not 0 <= number < len(self):
            raise IndexError(f"window {number} of {len(self)}")
        window = self._readers[build][number - int(self._ends[build] - len(self._readers[build]))]
        weights = window["weights"]
        if self.objective == "unique":
            weights = (window["owned"] & (weights != 0)).astype(np.float32)
        denominator = window["num_supervised"] if self.negative_weights else weights.sum(dtype=np.float64)
        return window | {
            "weights": weights,
            "subtree_ends": subtree_ends(window["parents"]),
            "num_rows": len(weights),
            "window": number,
            "denominator": float(denominator),
        }

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return several windows."""
        return [self[number] for number in numbers]


def _close(generations: list[Generation]) -> None:
    for generation in generations:
        generation.close()


def _check_alike(paths: list[Path], manifests: list[Manifest], partition: str, objective: str | None) -> None:
    first = manifests[0]
    for path, manifest in zip(paths, manifests, strict=True):
        if partition not in manifest.packing:
            raise UsageError(
                f"partition {partition}",
                f"{path} has {', '.join(manifest.partitions)}",
                hint="build with --val-fraction to have one",
            )
        facts = {
            "tokenizer": (manifest.tokenizer["sha256"], first.tokenizer["sha256"]),
            "vocabulary size": (manifest.vocab_size, first.vocab_size),
            "window length": (manifest.pack.capacity, first.pack.capacity),
        }
        if objective is None:
            facts["objective"] = (manifest.pack.objective, first.pack.objective)
        for name, (found, expected) in facts.items():
            if found != expected:
                where = f"{expected}, as {paths[0]} has"
                raise MismatchError(str(path), f"{name} {found}", where, hint="build them alike")


def _check_files(path: Path, manifest: Manifest, *, checksums: bool) -> None:
    if checksums:
        for _, failure in check_files(path, manifest.files):
            if failure:
                raise DamageError(*failure.split(": ", 1))
        return
    for entry in manifest.files:
        file = path / entry.path
        size = file.stat().st_size if file.is_file() else None
        if size != entry.size:
            found = "the file is missing" if size is None else f"{size:,} bytes"
            raise DamageError(str(file), found, f"{entry.size:,} bytes as the manifest says")


def _empty_window() -> dict[str, Any]:
    ints = np.zeros(0, dtype=np.int32)
    columns = dict.fromkeys(("inputs", "targets", "depths", "parents", "counts", "segments", "subtree_ends"), ints)
    return columns | {
        "weights": np.zeros(0, dtype=np.float32),
        "owned": np.zeros(0, dtype=bool),
        "num_supervised": 0,
        "weight_sum": 0.0,
        "num_rows": 0,
        "window": EMPTY,
        "denominator": 0.0,
    }


def collate(windows: Sequence[Mapping[str, Any]], length: int | None = None) -> Batch:
    """Return windows as one batch of tensors, padded to a length.

    Args:
        windows: of `PackedWindows`.
        length: of the rows; the longest window's where it is None. A GPU wants one length, a multiple of 128.

    Returns:
        ``input_ids, targets, position_ids`` int64 (pads 0, -100, 0), ``parents`` int32 (pads -1),
        ``subtree_ends`` int32 (pads see themselves), ``segments`` int32 (pads -1), ``counts`` int32, ``weights``
        float32, ``owned`` bool (pads 0): all (batch, length). ``num_rows``, ``window`` int64 and
        ``denominator`` float64: (batch,).

    Raises:
        ValueError: a window is longer than ``length``.
    """
    longest = max((int(window["num_rows"]) for window in windows), default=0)
    width = max(longest, 1) if length is None else length
    if longest > width:
        raise ValueError(f"a window of {longest} rows does not fit {width}")
    size = (len(windows), width)
    batch: Batch = {
        "input_ids": torch.zeros(size, dtype=torch.int64),
        "targets": torch.full(size, IGNORED_TARGET, dtype=torch.int64),
        "position_ids": torch.zeros(size, dtype=torch.int64),
        "parents": torch.full(size, -1, dtype=torch.int32),
        "subtree_ends": torch.arange(1, width + 1, dtype=torch.int32).repeat(len(windows), 1),
        "segments": torch.full(size, -1, dtype=torch.int32),
        "counts": torch.zeros(size, dtype=torch.int32),
        "owned": torch.zeros(size, dtype=torch.bool),
        "weights": torch.zeros(size, dtype=torch.float32),
    }
    names = {"input_ids": "inputs", "position_ids": "depths"}
    for row, window in enumerate(windows):
        for name, column in batch.items():
            values = np.ascontiguousarray(window[names.get(name, name)])
            column[row, : len(values)] = torch.from_numpy(values.copy() if not values.flags.writeable else values)
    for name in ("num_rows", "window"):
        batch[name] = torch.tensor([int(window[name]) for window in windows], dtype=torch.int64)
    batch["denominator"] = torch.tensor([float(window["denominator"]) for window in windows], dtype=torch.float64)
    return batch


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


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on a device; copies from pinned memory do not wait."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
