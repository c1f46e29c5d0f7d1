"""One window to look at: aligned columns beside its permission matrix, as text or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import UsageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.provenance import read_provenance
from dagpack_cli.shards import read_shard, windows_per_file
from dagpack_cli.tokenizing import Tokenizer, load_saved

__all__ = ["describe_window", "format_window"]


def describe_window(
    path: Path, manifest: Manifest, partition: str, number: int, *, first_row: int = 0, num_rows: int | None = None
) -> dict[str, Any]:
    """Return a window as JSON values: rows, the examples that are its own, and who may see whom.

    Args:
        path: of the generation.
        manifest: of it.
        partition: train or val.
        number: of the window, through the partition's shards.
        first_row: the first row shown.
        num_rows: how many rows are shown; all that follow where it is None.

    Returns:
        window facts, one list a column, ``allowed_keys`` (for each shown query the half-open ranges of
        the keys it may use: its path, stretch by stretch) and ``occurrences`` (the examples that
        belong to the window).

    Raises:
        UsageError: there is no such partition, window or row.
        DamageError: the window's shard is missing or unreadable.
    """
    if partition not in manifest.partitions:
        raise UsageError("--partition", partition, f"one of {', '.join(manifest.partitions)}")
    if num_rows is not None and num_rows < 1:
        raise UsageError("--rows", str(num_rows), "at least 1, or 0 for all")
    total = manifest.packing[partition]["windows"]
    if not 0 <= number < total:
        expected = (
            f"0 to {total - 1:,}, the windows of {partition}"
            if total
            else f"a partition with windows, unlike {partition}"
        )
        raise UsageError("--window", str(number), expected)
    step = windows_per_file(manifest.pack.capacity)
    windows = read_shard(path / manifest.shards(partition)[number // step])
    low, high = windows.row_offsets[number % step], windows.row_offsets[number % step + 1]
    size = int(high - low)
    if not 0 <= first_row < size:
        raise UsageError("--first-row", str(first_row), f"0 to {size - 1:,}, the rows of the window")
    last = size if num_rows is None else min(size, first_row + num_rows)
    ends = subtree_ends(windows.parents[low:high])
    tokenizer = load_saved(path / "tokenizer")
    names = ("inputs", "targets", "segments", "depths", "parents", "counts", "weights", "owned")
    columns = {name: getattr(windows, name)[low + first_row : low + last].tolist() for name in names}
    texts = {token: _text(tokenizer, token) for token in sorted(set(columns["inputs"]))}  # as a table has them
    parents = windows.parents[low:high].tolist()
    starts = _stretch_starts(windows.parents[low:high])
    return {
        "partition": partition,
        "window": number,
        "num_rows": size,
        "num_supervised": int(windows.num_supervised[number % step]),
        "weight_sum": float(windows.weight_sum[number % step]),
        "attention_edges": int(windows.attention_edges[number % step]),
        "window_len": manifest.pack.capacity,
        "first_row": first_row,
        "rows": columns | {"text": [texts[token] for token in columns["inputs"]]},
        "subtree_ends": ends[first_row:last].tolist(),
        "allowed_keys": [_path_ranges(parents, starts, query) for query in range(first_row, last)],
        "occurrences": _occurrences(path, partition, number),
    }


def _stretch_starts(parents: npt.NDArray[np.int32]) -> list[int]:
    """Return, for every row, where the stretch of rows that follow one another down to it begins."""
    index = np.arange(len(parents))
    heads = parents != index - 1
    heads[:1] = True
    return [int(start) for start in np.maximum.accumulate(np.where(heads, index, 0))]


def _path_ranges(parents: list[int], starts: list[int], row: int) -> list[list[int]]:
    """Return the half-open ranges of rows on the path to a row, from the root on."""
    ranges = []
    while row >= 0:
        ranges.append([starts[row], row + 1])
        row = parents[starts[row]]
    return ranges[::-1]


def _text(tokenizer: Tokenizer, token: int) -> str:
    try:
        text = tokenizer.decode([token])
    except (IndexError, KeyError, ValueError):  # an id that has no text, as a virtual root
        text = ""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _occurrences(path: Path, partition: str, number: int) -> list[dict[str, Any]]:
    table = read_provenance(path / "examples.parquet")
    parts = np.asarray(table.column("partition")) == partition
    column = table.column("windows").combine_chunks()
    offsets = column.offsets.to_numpy()
    owners = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    mine = np.unique(owners[column.values.to_numpy() == number]) if len(owners) else owners
    fields = ("id", "file", "record", "line", "start", "end", "num_tokens", "weight", "group")
    return [{name: table.column(name)[int(row)].as_py() for name in fields} for row in mine if parts[row]]


def format_window(facts: dict[str, Any]) -> str:
    """Return a window as a table of rows with the permission matrix beside it.

    A row of the matrix is a query, a column a key; ``x`` may be used, ``.`` may not.
    """
    rows = facts["rows"]
    first = facts["first_row"]
    shown = len(rows["inputs"])
    header = ["row", "input", "target", "segment", "depth", "parent", "count", "weight", "own", "text"]
    table = [header]
    table += [
        [
            str(first + at),
            *(str(rows[name][at]) for name in ("inputs", "targets", "segments", "depths", "parents", "counts")),
            f"{rows['weights'][at]:g}",
            "*" if rows["owned"][at] else "",
            rows["text"][at][:12],
        ]
        for at in range(shown)
    ]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = [
        f"{facts['partition']} window {facts['window']}: {facts['num_rows']:,} of {facts['window_len']:,} rows, "
        f"{facts['num_supervised']:,} supervised pairs, weight {facts['weight_sum']:g}, "
        f"{facts['attention_edges']:,} attention edges, {len(facts['occurrences']):,} examples",
    ]
    for number, row in enumerate(table):
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        line = "  ".join([*cells, row[-1].ljust(widths[-1])])
        if number:
            allowed = ["."] * shown
            for low, high in facts["allowed_keys"][number - 1]:
                shown_range = range(max(low - first, 0), min(high - first, shown))
                for key in shown_range:
                    allowed[key] = "x"
            line += "  " + "".join(allowed)
        else:
            line += "  may use key"
        lines.append(line.rstrip())
    if shown < facts["num_rows"]:
        lines.append(
            f"rows {first:,} to {first + shown - 1:,} of {facts['num_rows']:,}; --first-row and --rows show others"
        )
    return "\n".join(lines)
