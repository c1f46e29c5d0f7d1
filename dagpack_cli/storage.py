"""Atomic files, checksums, the lock and the generations of an output directory.

A generation is one complete, immutable build. It is written beside the others, synced, renamed into
``generations/`` and named by ``CURRENT``, which is replaced last and atomically: a reader sees the
previous build or the new one, never a mixture. A reader holds a shared ``flock`` on its generation,
so that a later build leaves it in place; the writer holds an exclusive one on ``LOCK``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dagpack_cli.errors import (
    BusyError,
    DagpackError,
    DamageError,
    DiskError,
    NoInputError,
    OutputError,
    PermissionDeniedError,
)

__all__ = [
    "Generation",
    "canonical_json",
    "is_output",
    "lock_output",
    "open_current",
    "publish",
    "read_current",
    "sha256_file",
    "sync_tree",
    "translate_os_error",
    "write_atomic",
]

CURRENT, LOCK, GENERATIONS, STAGING, MANIFEST = "CURRENT", "LOCK", "generations", ".staging", "manifest.json"


def canonical_json(value: object) -> bytes:
    """Return ``value`` as JSON with sorted keys, one form for one value: what fingerprints hash."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in blocks of 1 MiB. O(size)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def translate_os_error(error: OSError) -> DagpackError:
    """Return the kind of failure an `OSError` is for the user: permission, full disk or I/O."""
    where = os.fsdecode(error.filename) if error.filename is not None else "file system"
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(where, reason, "access to it", hint=f"check the owner and mode: ls -ld {where}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(where, reason, "room for the build", hint="free some space and run the same command again")
    if error.errno in (errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return OutputError(where, reason, "a directory that can be written", hint="choose another output directory")
    return DiskError(where, reason, hint="check the disk and run the same command again")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: written beside it, synced, renamed; nobody sees half a file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make every file and name below a directory durable, deepest first."""
    for root, _, names in os.walk(path, topdown=False):
        for name in names:
            descriptor = os.open(Path(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(root))


_NAME = re.compile(r"\d{6}-[0-9a-f]{12}")  # nothing else below generations/ is ours


@contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """Hold the exclusive lock of an output directory, creating both; the lock file is never unlinked.

    Raises:
        BusyError: another process holds it.
        OutputError: ``out`` cannot be a directory.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(str(out), "not a directory", "a directory, or a new name for one") from None
    except FileNotFoundError:  # a file system in which nothing can be made
        raise OutputError(str(out), "cannot be created", "a directory that can be written") from None
    with (out / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                str(out), "another build holds the lock", "one build at a time", hint="try again when it has ended"
            ) from None
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = str(out)  # a write that failed does not know its file
            raise


@dataclass(frozen=True, slots=True)
class Generation:
    """One published build: its directory, its name and the raw manifest.

    The open, share-locked manifest keeps the directory in place until `close` or the end of the process.
    """

    path: Path
    name: str
    manifest_bytes: bytes
    _guard: IO[bytes]

    def close(self) -> None:
        """Give up the lock that keeps the generation in place."""
        self._guard.close()

    def __enter__(self) -> Generation:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the generation."""
        self.close()


def is_output(path: Path) -> bool:
    """Tell whether a directory is an output of dagpack: it has a CURRENT or generations beside a LOCK."""
    return (path / GENERATIONS).is_dir() and ((path / CURRENT).is_file() or (path / LOCK).is_file())


def read_current(out: Path) -> tuple[str, str] | None:
    """Return (generation name, manifest SHA-256) of an output, or None when nothing is published.

    Raises:
        DamageError: CURRENT is not what dagpack writes.
    """
    try:
        raw = (out / CURRENT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        value = json.loads(raw)
        name, digest = value["generation"], value["manifest_sha256"]
        valid = isinstance(name, str) and isinstance(digest, str) and Path(name).name == name and len(digest) == 64
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise DamageError(str(out / CURRENT), "not a pointer to a generation", "JSON written by dagpack")
    return name, digest


def open_current(out: Path) -> Generation:
    """Return the current generation of an output, share-locked.

    Raises:
        NoInputError: there is no such directory, or nothing has been published in it.
        DamageError: CURRENT or the manifest is damaged.
    """
    for _ in range(10):  # a writer may publish and prune between two of our steps
        current = read_current(out)
        if current is None and (out / GENERATIONS).is_dir() and _generation_paths(out / GENERATIONS):
            raise DamageError(str(out / CURRENT), "missing", "the name of one of its generations")
        if current is None:
            found = "no such directory" if not out.exists() else "no finished build in it"
            raise NoInputError(str(out), found, "a directory written by dagpack", hint="dagpack build CORPUS OUT")
        name, digest = current
        path = out / GENERATIONS / name
        try:
            guard = (path / MANIFEST).open("rb")
        except FileNotFoundError:
            continue
        fcntl.flock(guard, fcntl.LOCK_SH)
        raw = guard.read()
        if not (path / MANIFEST).exists():
            guard.close()
            continue
        found_digest = hashlib.sha256(raw).hexdigest()
        if found_digest != digest:
            guard.close()
            raise DamageError(str(path / MANIFEST), f"sha256 {found_digest[:12]}", f"{digest[:12]}, as in CURRENT")
        return Generation(path, name, raw, guard)
    missing = path / MANIFEST if path.is_dir() else path
    raise DamageError(str(missing), "missing", "what CURRENT names")


def publish(out: Path, staged: Path, fingerprint: str, *, keep: int = 2) -> tuple[Path, list[str]]:
    """Turn a complete staged directory into the current generation.

    Everything is synced before the rename, the rename before CURRENT, and nothing old is removed
    before CURRENT names the new one.

    Args:
        out: the output directory, whose lock the caller holds.
        staged: a directory on the same file system, with ``manifest.json`` in it.
        fingerprint: hexadecimal; its first 12 digits become part of the name.
        keep: how many generations stay, the new one included; at least 1.

    Returns:
        the generation's path, and the names of old generations left because a reader holds them.
    """
    sync_tree(staged)
    generations = out / GENERATIONS
    generations.mkdir(exist_ok=True)
    current = _current_name(out)
    existing = _generation_paths(generations)
    # A build that ended between its rename and CURRENT left a complete generation that nobody read.
    orphans = [path for path in existing if current and path.name > current]
    path = generations / f"{int(existing[-1].name[:6]) + 1 if existing else 1:06d}-{fingerprint[:12]}"
    if existing and existing[-1].name != current and _same_manifest(existing[-1], staged):
        path = existing[-1]
        shutil.rmtree(staged)
    else:
        staged.rename(path)
    sync_directory(generations)
    digest = sha256_file(path / MANIFEST)
    write_atomic(out / CURRENT, canonical_json({"generation": path.name, "manifest_sha256": digest}) + b"\n")
    for orphan in orphans:
        if orphan != path:
            shutil.rmtree(orphan, ignore_errors=True)
    return path, _remove_old(generations, path.name, keep)


def _current_name(out: Path) -> str:
    """Return the name of the current generation; nothing where none, or a damaged one, is named."""
    try:
        current = read_current(out)
    except DamageError:
        return ""
    return "" if current is None else current[0]


def _same_manifest(left: Path, right: Path) -> bool:
    try:
        return (left / MANIFEST).read_bytes() == (right / MANIFEST).read_bytes()
    except FileNotFoundError:
        return False


def _generation_paths(generations: Path) -> list[Path]:
    paths = [path for path in generations.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=lambda path: path.name)


def _remove_old(generations: Path, current: str, keep: int) -> list[str]:
    held = []
    for path in _generation_paths(generations)[: -max(keep, 1)]:
        if path.name == current:
            continue
        try:
            with (path / MANIFEST).open("rb") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (path / MANIFEST).unlink()  # first: what has none is nobody's
        except FileNotFoundError:  # a removal that was interrupted
            pass
        except OSError:
            held.append(path.name)
            continue
        shutil.rmtree(path, ignore_errors=True)  # the new build is published, whatever stays of an old one
    return held
