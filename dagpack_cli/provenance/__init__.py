"""The provenance that stays with a build: ``examples.parquet``, one row per example, in input order.

No tokens are in it: those are in the trie.
"""

from dagpack_cli.provenance.columns import ExampleColumns, columns_of, read_columns
from dagpack_cli.provenance.rewriting import rewrite_provenance
from dagpack_cli.provenance.schema import DROPPED, EMPTY, KEPT, SINGLE_TOKEN, STATUSES, UNTRAINED
from dagpack_cli.provenance.tables import read_provenance, supervised_runs, write_provenance

__all__ = [
    "DROPPED",
    "EMPTY",
    "KEPT",
    "SINGLE_TOKEN",
    "STATUSES",
    "UNTRAINED",
    "ExampleColumns",
    "columns_of",
    "read_columns",
    "read_provenance",
    "rewrite_provenance",
    "supervised_runs",
    "write_provenance",
]
