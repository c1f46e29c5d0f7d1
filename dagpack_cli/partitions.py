"""Train or validation: whole groups, by content hash, before anything is merged. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dagpack_cli.sequences import Sequences

__all__ = ["PARTITIONS", "assign_partitions"]

PARTITIONS = ("train", "val")
Int64Array = npt.NDArray[np.int64]


def assign_partitions(
    sequences: Sequences,
    runs: npt.NDArray[np.int32],
    run_offsets: Int64Array,
    groups: Iterable[str | None],
    *,
    first_target: int,
    val_fraction: float,
    seed: int,
) -> npt.NDArray[np.int8]:
    """Return the partition of every example, as an index into `PARTITIONS`.

    Examples of one group are never parted. The group is what the record names; else the tokens before
    the first supervised target (completions of one prompt stay together); else, where everything is
    supervised, the whole example, so that duplicates stay together.

    Args:
        sequences: the tokens of every example.
        runs: shape (num_runs, 2), int32; supervised ranges.
        run_offsets: shape (num_examples + 1,), int64.
        groups: the record's group of every example, or None.
        first_target: the first position that can be a target: 1, or 0 below a virtual root.
        val_fraction: of the groups, 0 up to 1.
        seed: changes which groups.

    Returns:
        shape (num_examples,), int8. It depends on content and seed alone, not on what else is there.
    """
    result = np.zeros(len(sequences), dtype=np.int8)
    if val_fraction == 0:
        return result
    limit = int(val_fraction * 2**64)
    for example, group in enumerate(groups):
        if group is not None:
            key = b"group:" + group.encode("utf-8", "surrogatepass")
        else:
            tokens = sequences[example]
            end = len(tokens)
            for low, high in runs[run_offsets[example] : run_offsets[example + 1]].tolist():
                if high > first_target:
                    end = low if low > first_target else end
                    break
            key = b"tokens:" + tokens[:end].astype("<i4", copy=False).tobytes()
        digest = hashlib.sha256(f"{seed}:".encode() + key).digest()
        result[example] = int.from_bytes(digest[:8], "big") < limit
    return result
