"""dagpack: merge shared prefixes once, pack the trie into training windows, lose nothing.

Importing this package loads nothing heavy: no torch, numba, transformers or typer.
"""

from __future__ import annotations

from dagpack_cli.errors import DagpackError

__all__ = ["DagpackError", "__version__"]

__version__ = "0.1.0"
