"""What one input file may ask for: bounds that only a mistake or an attack reaches.

They keep a line, an archive or a nesting from taking the memory or the day of a build; what goes
over one is a bad record or a bad file like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from dagpack_cli.errors import UsageError

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one input file.

    Attributes:
        max_line_bytes: of one line, one element of an array, or one row of a table.
        max_decompressed_bytes: that an archive may come to.
        max_ratio: decompressed bytes for every byte of the archive, once it has come to 64 MiB (so for
            a column of a row group): zeros reach 1,029 with gzip and 10,000 with zstd, text seldom 20.
        max_depth: levels of brackets in a JSON record.

    Raises:
        UsageError: a bound below 1, or a depth that cannot be read.
    """

    max_line_bytes: int = 256 << 20
    max_decompressed_bytes: int = 64 << 30
    max_ratio: int = 1000
    max_depth: int = 256

    def __post_init__(self) -> None:
        """Check ranges."""
        for entry in fields(self):
            option = f"--{entry.name.replace('_', '-')}"
            value = getattr(self, entry.name)
            if value < 1:
                raise UsageError(option, f"{value:,}", "at least 1")
        if self.max_depth > 500:
            raise UsageError("--max-depth", f"{self.max_depth:,}", "1 to 500: parsers go no deeper")


DEFAULT_LIMITS = Limits()
