"""What a build is asked for and what it answers: which tokenizer, how it runs, and the generation it made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from dagpack_cli.errors import UsageError
from dagpack_cli.manifest import (
    Manifest,
)
from dagpack_cli.stages.receipts import Listener, SilentListener
from dagpack_cli.trie import Engine

__all__ = ["BuildResult", "Execution", "TokenizerChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """Which tokenizer reads the corpus, and which template writes its conversations.

    Attributes:
        spec: ``auto``, ``bytes``, ``symbols``, ``none`` or a path.
        bos: an id or ``none`` instead of the tokenizer's own.
        eos: likewise.
        template: ``auto``, ``builtin`` or a path.
        template_date: what a template takes for today: YYYY-MM-DD.
    """

    spec: str = "auto"
    bos: str | None = None
    eos: str | None = None
    template: str = "auto"
    template_date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a build runs; none of it changes a byte of the result.

    Attributes:
        workers: processes that read and threads that write.
        engine: ``numpy`` or ``numba`` for the loops of the trie and the packer; ``auto`` by size.
        rehash: read every input again, even where size, times and inode are those of the last build.
        keep: generations that stay, the new one included.
        wait: seconds to wait at most while another build holds the lock.
        cache: whether what has been read stays for the next build.
        memory: bytes that a build may hold, see `default_memory`; None is half of what the machine has.
        listener: hears progress and notes.
    """

    workers: int = 1
    engine: Engine = "auto"
    rehash: bool = False
    keep: int = 2
    wait: float = 0.0
    memory: int | None = None
    cache: bool = True
    listener: Listener = field(default_factory=SilentListener)

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.workers < 1:
            raise UsageError("--workers", str(self.workers), "at least 1")
        if self.keep < 1:
            raise UsageError("--keep", str(self.keep), "at least 1")
        if not 0 <= self.wait < math.inf:
            raise UsageError("--wait", str(self.wait), "a number of seconds, at least 0")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A published generation, and whether this call wrote it."""

    path: Path
    manifest: Manifest
    unchanged: bool
