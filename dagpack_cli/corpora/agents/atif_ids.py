"""ATIF trajectories that carry the token ids of every step: they are examples as they are, never retokenised."""

from __future__ import annotations

from typing import Any

from dagpack_cli.corpora.agents import atif
from dagpack_cli.corpora.agents.atif import read
from dagpack_cli.corpora.options import ReadOptions

__all__ = ["NAME", "read", "recognise"]

NAME = "atif-ids"


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record is a trajectory whose agent's steps all have their ids."""
    return atif.recognise(record, options) and atif.holds_ids(record)
