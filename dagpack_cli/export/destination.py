"""Where an export goes: standard output, or a file that is there whole or not at all."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from dagpack_cli.errors import BusyError, DiskError, OutputError, UsageError
from dagpack_cli.export.jsonl import window_records, write_lines
from dagpack_cli.export.windows import Survey, WindowExport
from dagpack_cli.failpoints import step
from dagpack_cli.remote.uris import locate
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import is_full, sync_directory, translate_os_error

__all__ = ["Destination"]


class Destination:
    """Standard output, which takes JSON lines, or a file of JSON lines or Parquet, as its name ends.

    Args:
        output: the file; None for standard output.
        force: replace a file that exists.

    Raises:
        UsageError: a URI, or a name that ends otherwise; or ``force`` without a file.
        OutputError: its folder does not exist, it is no file, or it exists.
    """

    def __init__(self, output: str | None = None, *, force: bool = False) -> None:
        self.path = None if output is None else _file_of(output, force=force)
        if force and output is None:
            raise UsageError("--force", "there is no --output", "a file to replace", hint="leave it out")
        self.format: Literal["jsonl", "parquet"] = "parquet" if str(self.path).endswith(".parquet") else "jsonl"

    def write_records(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records as JSON, one a line.

        Raises:
            UsageError: the file is one of Parquet, which holds windows alone.
            DiskError: there is no room for them.
            BusyError: another export writes the file.
        """
        if self.format == "parquet":
            raise UsageError("--output", f"{self.path} without --to", "a .jsonl file: examples differ in their fields")
        if self.path is None:
            with _room_for("standard output", "write to a disk that has room: --output FILE"):
                write_lines(sys.stdout.buffer, records)
            return
        with _replaced(self.path) as partial, partial.open("wb") as file:
            write_lines(file, records)

    def write_windows(self, export: WindowExport, listener: Listener) -> Survey:
        """Check the windows of an export, write them, and return their totals. They are read twice.

        Raises:
            DagpackError: as `WindowExport.survey`, before anything is written; DiskError and BusyError as
                `write_records`.
        """
        found = export.survey(_progress(listener, "check", export.num_windows))
        done = _progress(listener, "export", found.windows)
        if self.path is not None and self.format == "parquet":
            from dagpack_cli.export.parquet import write_parquet

            with _replaced(self.path) as partial:
                write_parquet(partial, export, done)
        else:
            self.write_records(window_records(export, done))
        if found.longer:
            listener.note(_too_long(export, found))
        return found


def _progress(listener: Listener, stage: str, total: int) -> Callable[[int], None]:
    """Return what tells a listener how many of ``total`` windows a stage has done, a few at a time."""
    so_far = 0

    def done(num_windows: int) -> None:
        nonlocal so_far
        so_far += num_windows
        listener.progress(stage, so_far, total)

    return done


def _too_long(export: WindowExport, found: Survey) -> str:
    rows = export.manifest.pack.capacity
    return (
        f"{found.longer:,} of {found.windows:,} windows have more tokens than the {rows:,} rows of a window, the "
        f"longest {found.longest:,}: a document of n tokens is n - 1 rows; where a trainer takes no more than "
        f"{rows:,}, pack again with a smaller --seq-len"
    )


def _file_of(output: str, *, force: bool) -> Path:
    """Return the path of a file that may be written."""
    path = locate(output)
    if not isinstance(path, Path):
        hint = "write a local file, then copy it there"
        raise UsageError("--output", f"{path} is a URI", "a file on this machine", hint=hint)
    if path.suffix not in (".parquet", ".jsonl"):
        raise UsageError("--output", str(path), "a name that ends in .parquet or .jsonl")
    if not path.parent.is_dir():
        hint = f"mkdir -p {path.parent}"
        raise OutputError(str(path), "its folder does not exist", "a file in a folder that exists", hint=hint)
    if os.path.lexists(path) and not path.is_file():
        raise OutputError(str(path), "exists, and is no file", "a file", hint="name another file with --output")
    if os.path.lexists(path) and not force:
        raise OutputError(str(path), "exists already", "a new file", hint="name another file, or replace it: --force")
    return path


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Give a file beside ``path`` to write; then sync it and give it that name. Nobody sees half a file.

    What an export that was killed left there is used again; an export that is alive holds its lock.
    """
    partial = path.with_name(f".{path.name}.partial")
    with (
        _room_for(str(path), "free some space, or name a file on another disk with --output"),
        partial.open("ab") as file,
    ):
        _lock(file.fileno(), partial, path)
        try:
            with step("export-write"):
                yield partial
            with step("export-sync"):
                os.fsync(file.fileno())
            with step("export-rename"):
                partial.replace(path)
        except BaseException:  # a signal too
            with suppress(OSError):
                partial.unlink()
            raise
        sync_directory(path.parent)


def _lock(descriptor: int, partial: Path, path: Path) -> None:
    """Lock a file that was opened, which may have been published by its writer since."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.fstat(descriptor), partial.stat())
    except (BlockingIOError, FileNotFoundError):
        ours = False
    if not ours:
        raise BusyError(str(path), "another export writes it", "one at a time")


@contextmanager
def _room_for(where: str, hint: str) -> Iterator[None]:
    """Say of a full disk that it is the export that has no room, and of any failure where it was."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskError(where, translate_os_error(error).found, "room for the export", hint=hint) from error
        error.filename = error.filename or where
        raise
