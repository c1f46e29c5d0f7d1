"""Atomic files, checksums and the generations of an output directory.

A generation is one complete, immutable build. It is written beside the others, synced, renamed into
``generations/`` and named by ``CURRENT``, which is replaced last and atomically: a reader sees the
previous build or the new one, never a mixture. A reader holds a shared ``flock`` on its generation,
so that a later build leaves it in place; the writer holds an exclusive one on ``LOCK`` (see `locks`).

Tests kill a build, or fail it, before and after each step of this protocol: ``DAGPACK_FAILPOINT``, as
`failpoints` describes it. Without that variable nothing of the kind is there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dagpack_cli.errors import (
    DagpackError,
    DamageError,
    DiskError,
    NoInputError,
    OutputError,
    PermissionDeniedError,
)
from dagpack_cli.failpoints import step

__all__ = [
    "Generation",
    "canonical_json",
    "current_name",
    "current_of",
    "is_full",
    "is_output",
    "open_current",
    "parse_current",
    "publish",
    "read_current",
    "remove_generation",
    "remove_leftovers",
    "sha256_file",
    "sync_tree",
    "translate_os_error",
    "write_atomic",
]

CURRENT, LOCK, GENERATIONS, STAGING, CACHE, MANIFEST = (
    "CURRENT",
    "LOCK",
    "generations",
    ".staging",
    "cache",
    "manifest.json",
)


def canonical_json(value: object) -> bytes:
    """Return ``value`` as JSON with sorted keys, one form for one value: what fingerprints hash."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in blocks of 1 MiB. O(size)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _number_of(error: OSError) -> int | None:
    """Return the errno of an error; libraries may tell it in the text alone."""
    if error.errno is not None:
        return error.errno
    found = re.search(r"\berrno (\d+)", str(error), re.IGNORECASE)
    if found is not None:
        return int(found[1])
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)
    return next((number for number in numbers if os.strerror(number).lower() in str(error).lower()), None)


def is_full(error: OSError) -> bool:
    """Tell whether an error says that the disk, or the user's share of it, is full."""
    return _number_of(error) in (errno.ENOSPC, errno.EDQUOT)


def translate_os_error(error: OSError) -> DagpackError:
    """Return the kind of failure an `OSError` is for the user: permission, full disk or I/O."""
    where = os.fsdecode(error.filename) if error.filename is not None else "file system"
    number = _number_of(error)
    reason = (str(error) if number is None else os.strerror(number)).lower()
    if number in (errno.EACCES, errno.EPERM):
        of = "of what is read and written" if error.filename is None else f"ls -ld {_nearest(Path(where))}"
        return PermissionDeniedError(where, reason, "access to it", hint=f"check the owner and mode: {of}")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(
            where, reason, "room for what is written", hint="free some space and run the same command again"
        )
    if number in (errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return OutputError(where, reason, "a directory that can be written", hint="choose another output directory")
    return DiskError(where, reason, hint="check the disk and run the same command again")


def _nearest(path: Path) -> Path:
    """Return a path, or the innermost folder above it where there is nothing at it, or nothing to be seen."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: written beside it, synced, renamed; nobody sees half a file."""
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            with step("atomic-write"):
                file.write(data)
                file.flush()
            with step("atomic-sync"):
                os.fsync(file.fileno())
        with step("atomic-rename"):
            partial.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write that failed does not know its file
        with suppress(OSError):
            partial.unlink()
        raise
    sync_directory(path.parent)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with step("directory-sync"):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make every file and name below a directory durable, deepest first."""
    for root, _, names in os.walk(path, topdown=False):
        for name in names:
            descriptor = os.open(Path(root, name), os.O_RDONLY)
            try:
                with step("file-sync"):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(root))


_NAME = re.compile(r"\d{6}-[0-9a-f]{12}")  # nothing else below generations/ is ours


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
    except IsADirectoryError:
        raise DamageError(str(out / CURRENT), "a folder", "JSON written by dagpack") from None
    return parse_current(raw, str(out / CURRENT))


def parse_current(raw: bytes, where: str) -> tuple[str, str]:
    """Return (generation name, manifest SHA-256) as a CURRENT says it.

    Raises:
        DamageError: it is not what dagpack writes.
    """
    try:
        value = json.loads(raw)
        name, digest = value["generation"], value["manifest_sha256"]
        valid = isinstance(name, str) and isinstance(digest, str) and bool(_NAME.fullmatch(name)) and len(digest) == 64
    except (ValueError, KeyError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise DamageError(where, "not a pointer to a generation", "JSON written by dagpack")
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
        for own in (path, path / MANIFEST):
            if own.is_symlink():
                raise DamageError(str(own), "a link", "what dagpack wrote: it makes none")
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
    current = current_name(out)
    existing = _generation_paths(generations)
    # A build that ended between its rename and CURRENT left a complete generation that nobody read.
    orphans = [path for path in existing if current and path.name > current]
    path = generations / f"{int(existing[-1].name[:6]) + 1 if existing else 1:06d}-{fingerprint[:12]}"
    try:
        if existing and existing[-1].name != current and _same_manifest(existing[-1], staged):
            path = existing[-1]
            shutil.rmtree(staged)
        else:
            with step("generation-rename"):
                staged.rename(path)
        sync_directory(generations)
        _point_to(out, path)
    except OSError as error:
        if is_full(error) and current_name(out) != path.name:
            _remove(path)  # its space is needed, and nobody has seen it
        raise
    for orphan in orphans:
        if orphan != path:
            _remove(orphan)
    return path, _remove_old(generations, path.name, keep)


def _point_to(out: Path, path: Path) -> None:
    """Make a generation the current one."""
    with step("current-write"):
        write_atomic(out / CURRENT, current_of(path.name, sha256_file(path / MANIFEST)))


def current_of(name: str, manifest_sha256: str) -> bytes:
    """Return the bytes of a CURRENT that names a generation."""
    return canonical_json({"generation": name, "manifest_sha256": manifest_sha256}) + b"\n"


def remove_leftovers(out: Path, keep: int) -> list[str]:
    """Remove what killed builds left beside the current generation, which stays, and all but ``keep`` generations.

    Without a CURRENT that can be read nothing is removed.

    Returns:
        the names of old generations left because a reader holds them.
    """
    current = current_name(out)
    if not current:
        return []
    _partial(out / CURRENT).unlink(missing_ok=True)
    for path in _generation_paths(out / GENERATIONS):
        if path.name > current:
            _remove(path)
    return _remove_old(out / GENERATIONS, current, keep)


def current_name(out: Path) -> str:
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
    old = [path for path in _generation_paths(generations)[: -max(keep, 1)] if path.name != current]
    return _remove_unread(old)


def remove_generation(out: Path, name: str) -> list[str]:
    """Remove one generation that is not the current one.

    Returns:
        its name if it is left because a reader holds it.
    """
    return _remove_unread([out / GENERATIONS / name])


def _remove_unread(paths: list[Path]) -> list[str]:
    """Remove generations but those that a reader holds; return the names of these."""
    held = []
    for path in paths:
        try:
            with (path / MANIFEST).open("rb") as guard:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with step("old-unlink"):
                    (path / MANIFEST).unlink()  # first: what has none is nobody's
        except FileNotFoundError:  # a removal that was interrupted
            pass
        except OSError:
            held.append(path.name)
            continue
        _remove(path)
    return held


def _remove(path: Path) -> None:
    """Remove a generation that nobody reads; whatever stays of it, the current one is published."""
    with suppress(OSError), step("old-remove"):
        shutil.rmtree(path, ignore_errors=True)
