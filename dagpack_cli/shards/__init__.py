r"""Shards: windows as rows, and the files that hold them.

RowForest + Placement + Pieces -> merged.MergedWindows -----\
    Pieces + windows of chains ----> unmerged.UnmergedWindows ---+-> window.WindowRows -> parquet | npy
parquet | npy -> window.WindowRows                             (for verify, export, show and training)
"""

from dagpack_cli.shards.access import WindowReader
from dagpack_cli.shards.files import read_shard, windows_per_file, write_shards
from dagpack_cli.shards.merged import MergedWindows, RowTotals, row_totals, state_totals
from dagpack_cli.shards.unmerged import UnmergedWindows
from dagpack_cli.shards.window import ROW_COLUMNS, WindowRows, chain_blocks

__all__ = [
    "ROW_COLUMNS",
    "MergedWindows",
    "RowTotals",
    "UnmergedWindows",
    "WindowReader",
    "WindowRows",
    "chain_blocks",
    "read_shard",
    "row_totals",
    "state_totals",
    "windows_per_file",
    "write_shards",
]
