"""Examples on disk, as ingest hands them to the trie.

A *split* is a folder of plain arrays written while one part of the corpus is read.

    Example, IdBlock -> writing.SplitWriter -> a split -> splits.Segment -> loading.Examples
"""

from dagpack_cli.examples.files import META_SCHEMA, read_table, write_lines
from dagpack_cli.examples.loading import Examples, load_examples
from dagpack_cli.examples.splits import Segment
from dagpack_cli.examples.writing import SplitWriter, copy_examples

__all__ = [
    "META_SCHEMA",
    "Examples",
    "Segment",
    "SplitWriter",
    "copy_examples",
    "load_examples",
    "read_table",
    "write_lines",
]
