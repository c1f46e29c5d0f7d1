"""The order of a build: lock, plan, ingest, dedup, pack, publish. The only orchestration.

    build = ingest -> dedup -> pack -> publish

Unfinished work lies in ``.staging/<fingerprint>`` and is taken up again by the next build with the
same inputs, options and versions; what is published is the same bytes either way.
"""

from __future__ import annotations

from dagpack_cli.pipeline.building import build, dedup, ingest
from dagpack_cli.pipeline.execution import BuildResult, Execution, TokenizerChoice
from dagpack_cli.pipeline.packing import check_merge, pack, stored_merge
from dagpack_cli.pipeline.planning import plan

__all__ = [
    "BuildResult",
    "Execution",
    "TokenizerChoice",
    "build",
    "check_merge",
    "dedup",
    "ingest",
    "pack",
    "plan",
    "stored_merge",
]
