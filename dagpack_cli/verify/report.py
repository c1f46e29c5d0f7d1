"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dagpack_cli.errors import DamageError

__all__ = ["VerifyReport", "fail"]


@dataclass(slots=True)
class VerifyReport:
    """What was checked, and every failure found.

    Attributes:
        files, windows, rows: how many were checked.
        failures: ``where: found; expected``, in the order found.
    """

    files: int = 0
    windows: int = 0
    rows: int = 0
    failures: list[str] = field(default_factory=list)


def fail(where: Path | str, found: str, expected: str = "") -> NoReturn:
    """Raise `DamageError`."""
    raise DamageError(str(where), found, expected)
