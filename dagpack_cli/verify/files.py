"""The bytes of an output: every file of every generation, and what names them."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from dagpack_cli.errors import DagpackError
from dagpack_cli.manifest import FileEntry, Manifest, unseal_run
from dagpack_cli.storage import canonical_json, sha256_file

__all__ = ["check_files", "check_names", "check_output"]

_NAME = re.compile(r"\d{6}-[0-9a-f]{12}")


def check_files(path: Path, entries: Sequence[FileEntry]) -> Iterator[tuple[FileEntry, str]]:
    """Yield every file of a manifest with what is wrong with its size or checksum, or an empty string."""
    for entry in entries:
        file = path / entry.path
        mode, size = _look(file)
        if mode == 0:
            yield entry, f"{file}: the file is missing; {entry.size:,} bytes"
        elif not stat.S_ISREG(mode):
            yield entry, f"{file}: no regular file; {entry.size:,} bytes"
        elif size != entry.size:
            yield entry, f"{file}: {size:,} bytes; {entry.size:,} as the manifest says"
        elif (digest := sha256_file(file)) != entry.sha256:
            yield entry, f"{file}: sha256 {digest[:12]}; {entry.sha256[:12]} as the manifest says"
        else:
            yield entry, ""


def _look(file: Path) -> tuple[int, int]:
    """Return mode and size of what stands at a path, links not followed; zeros for nothing."""
    try:
        found = file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return found.st_mode, found.st_size


def check_names(path: Path, entries: Sequence[FileEntry]) -> Iterator[str]:
    """Yield what stands in a generation and is not in its manifest; links are not followed."""
    known = {entry.path for entry in entries} | {"manifest.json", "run.json"}
    extra = []
    for folder, folders, names in os.walk(path):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        extra += [Path(folder, name).relative_to(path).as_posix() for name in names + links]
    for name in sorted(set(extra) - known):
        yield f"{path / name}: not in the manifest; only files the build wrote"
    for name in ("manifest.json", "run.json"):
        mode, _ = _look(path / name)
        if mode and not stat.S_ISREG(mode):
            yield f"{path / name}: no regular file; a file that the build wrote"


def check_output(path: Path) -> Iterator[str]:
    """Yield what is wrong around a generation: CURRENT, the records of runs, and the other generations' files.

    Args:
        path: of the generation; nothing around it is looked at where it stands in no output.
    """
    yield from _check_run(path)
    if path.parent.name != "generations":
        return
    current = path.parent.parent / "CURRENT"
    yield from _check_current(current)
    for other in sorted(path.parent.iterdir()):
        if other != path and _NAME.fullmatch(other.name) and other.is_dir() and not other.is_symlink():
            yield from _check_other(other)


def _check_current(current: Path) -> Iterator[str]:
    """Hold CURRENT against the one way in which it is written: it has no checksum of its own."""
    try:
        raw = current.read_bytes()
        value = json.loads(raw)
        written = canonical_json({name: value[name] for name in ("generation", "manifest_sha256")}) + b"\n"
    except FileNotFoundError:
        return  # a generation on its own
    except (ValueError, KeyError, TypeError, RecursionError):
        written = b""
        raw = b"?"
    if raw != written:
        yield f"{current}: not as it was written; one line of JSON by dagpack"


def _check_run(path: Path) -> Iterator[str]:
    file = path / "run.json"
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return  # nothing depends on it
    run = unseal_run(raw)
    if run is None:
        yield f"{file}: not as it was written; the record of a run with its checksum"
    elif (path / "manifest.json").is_file():
        digest = sha256_file(path / "manifest.json")
        stored = str(run.get("manifest_sha256"))
        if stored != digest:
            yield f"{path / 'manifest.json'}: sha256 {digest[:12]}; {stored[:12]} as in run.json"


def _check_other(path: Path) -> Iterator[str]:
    """Check the bytes of a generation that is kept beside the current one; one that is just removed is none."""
    try:
        with (path / "manifest.json").open("rb") as guard:
            fcntl.flock(guard, fcntl.LOCK_SH)
            raw = guard.read()
            if not (path / "manifest.json").exists():
                return
            yield from _check_run(path)
            try:
                manifest = Manifest.from_bytes(raw, path / "manifest.json")
            except DagpackError as error:
                yield str(error)
                return
            yield from (failure for _, failure in check_files(path, manifest.files) if failure)
            yield from check_names(path, manifest.files)
    except FileNotFoundError:
        return
