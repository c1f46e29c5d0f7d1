"""From shards to tensors: a map-style dataset of windows, and windows as one batch."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dagpack_cli.errors import DamageError, MismatchError, UsageError
from dagpack_cli.manifest import Manifest, refuse_links
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.remote import local_output
from dagpack_cli.shards import WindowReader
from dagpack_cli.storage import Generation, open_current
from dagpack_cli.trie import open_trie
from dagpack_cli.verify import check_files

__all__ = ["EMPTY", "IGNORED_TARGET", "Batch", "PackedWindows", "collate", "to_device", "whole_blocks"]

Batch = dict[str, Any]
IGNORED_TARGET = -100  # what torch's cross entropy leaves out
BLOCK_ROWS = 128  # of FlexAttention: what a GPU's windows are padded to a multiple of
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


def whole_blocks(rows: int) -> int:
    """Return the rows of a window padded to whole blocks of FlexAttention.

    >>> whole_blocks(1), whole_blocks(128), whole_blocks(129)
    (128, 128, 256)
    """
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on a device; copies from pinned memory do not wait."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
