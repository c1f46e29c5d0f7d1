"""The alternatives: TRL's best-fit packing of the same sequences, and writing its result as Parquet."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from .families import Corpus

__all__ = ["has_trl", "pack_bfd", "sequences_dataset", "write_dataset"]


def has_trl() -> bool:
    """Tell whether TRL is installed; it is imported only when it runs."""
    return importlib.util.find_spec("trl") is not None


def sequences_dataset(corpus: Corpus, *, labels: bool = False) -> Any:
    """Return the sequences as a `datasets.Dataset` over the memory-mapped tokens: nothing is copied.

    With ``labels`` there is a second column that says what trains, as large as the first.
    """
    import datasets
    import pyarrow as pa
    from trl import pack_dataset  # noqa: F401  # imports are not what is measured

    datasets.disable_progress_bars()
    datasets.disable_caching()
    offsets = pa.array(corpus.offsets.astype(np.int32))
    columns = {"input_ids": pa.ListArray.from_arrays(offsets, pa.array(corpus.tokens))}
    if labels:
        columns["labels"] = pa.ListArray.from_arrays(offsets, pa.array(_labels(corpus)))
    return datasets.Dataset(pa.table(columns))


def _labels(corpus: Corpus) -> Any:
    owners = np.repeat(np.arange(corpus.num_sequences), np.diff(corpus.run_offsets))
    change = np.zeros(len(corpus.tokens) + 1, dtype=np.int32)
    np.add.at(change, corpus.offsets[owners] + corpus.runs[:, 0], 1)
    np.add.at(change, corpus.offsets[owners] + corpus.runs[:, 1], -1)
    return np.where(np.cumsum(change[:-1]) > 0, corpus.tokens, np.int32(-100))


def pack_bfd(dataset: Any, seq_len: int) -> Any:
    """Return TRL's best-fit-decreasing packing, in its own batches of 1000."""
    from trl import pack_dataset

    return pack_dataset(dataset, seq_len, strategy="bfd")


def write_dataset(dataset: Any, path: Path) -> None:
    """Write a dataset as one zstd Parquet file."""
    import pyarrow.parquet as pq

    pq.write_table(dataset.data.table, path, compression="zstd")
