"""Receipts: a stage's folder is complete if and only if its receipt is in it, written last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from dagpack_cli.storage import canonical_json, write_atomic

__all__ = ["Listener", "SilentListener", "read_receipt", "write_receipt"]

_NAME = "receipt.json"


class Listener(Protocol):
    """Who hears how a stage goes on."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Hear that ``done`` of ``total`` units of a stage are finished."""

    def note(self, text: str) -> None:
        """Hear something a person should know; the build goes on."""


class SilentListener:
    """A listener that does nothing."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


def write_receipt(directory: Path, value: dict[str, Any]) -> None:
    """Mark a stage's folder complete."""
    write_atomic(directory / _NAME, canonical_json(value) + b"\n")


def read_receipt(directory: Path) -> dict[str, Any] | None:
    """Return the receipt of a complete folder, None where the stage has not finished."""
    try:
        value = json.loads((directory / _NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
