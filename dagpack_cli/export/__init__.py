"""Shards back to examples, and windows for other trainers.

``examples`` gives back what was read: the proof that nothing was lost. ``windows`` gives the windows to
other trainers: ``trl`` as whole token sequences, ``tree`` as rows with intervals. ``destination`` takes
either to standard output (``jsonl``) or into a file (``jsonl``, ``parquet``).
"""

from __future__ import annotations

from dagpack_cli.export.destination import Destination
from dagpack_cli.export.examples import export_examples, export_sequences, export_transitions
from dagpack_cli.export.windows import Survey, WindowExport

__all__ = [
    "Destination",
    "Survey",
    "WindowExport",
    "export_examples",
    "export_sequences",
    "export_transitions",
]
