"""The files below a folder: links followed, no file read twice, nothing opened that is no file.

What stands in the folder itself comes first, then what links lead to, in the order of their paths'
bytes: which of two ways to one file is taken never depends on the order of a listing. A hard link is
a file like its twin, as a copy would be.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dagpack_cli.errors import DagpackError, DataError, DiskError, PermissionDeniedError

__all__ = ["Refuse", "Walk", "is_build", "look", "printable"]

Identity = tuple[int, int]
Refuse = Callable[[str, DagpackError], None]
_LARGEST_MANIFEST = 1 << 28
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Walk:
    """A walk of everything below a corpus, which may be a file.

    Args:
        corpus: a folder, or one file.
        exclude: a folder that is never input: the output.
        refuse: called with the name of what cannot be listed, and why.
    """

    def __init__(self, corpus: Path, exclude: Path | None, refuse: Refuse) -> None:
        self.ignored: list[tuple[str, str]] = []
        self._corpus = corpus
        self._refuse = refuse
        self._banned = None if exclude is None else look(exclude)[1]
        self._folders: dict[Identity, str] = {}
        self._files: dict[Identity, str] = {}
        self._linked: set[Identity] = set()  # files that were reached by a link to them
        self._links: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[bytes, Path, str]]:
        """Yield ``(relative path in bytes, path, name)`` of every regular file, in any order."""
        mode, identity = look(self._corpus)
        path = str(self._corpus)
        if stat.S_ISDIR(mode):
            yield from self._tree(path, "", identity)
        elif stat.S_ISREG(mode):
            yield os.fsencode(self._corpus.name), self._corpus, printable(self._corpus.name)
        else:
            self.ignored.append((printable(self._corpus.name), _kind(mode)))
        while self._links:
            links = sorted(self._links, key=lambda link: os.fsencode(link[1]))
            self._links = []
            for path, relative in links:
                yield from self._follow(path, relative)

    def _follow(self, path: str, relative: str) -> Iterator[tuple[bytes, Path, str]]:
        """Yield what a link leads to, where it has not been met before."""
        name = printable(relative)
        try:
            mode, identity = look(Path(path))
        except DagpackError as error:
            self._refuse(name, error)
            return
        if identity in self._folders:
            self.ignored.append((name, f"a link to a folder that is read as {self._folders[identity]}"))
        elif stat.S_ISDIR(mode):
            yield from self._tree(path, relative, identity)
        elif not stat.S_ISREG(mode):
            self.ignored.append((name, _kind(mode) if mode else "a broken link"))
        elif identity in self._files:
            self.ignored.append((name, f"a link to a file that is read as {self._files[identity]}"))
        else:
            self._linked.add(identity)
            self._files[identity] = name
            yield os.fsencode(relative), Path(path), name

    def _tree(self, path: str, relative: str, identity: Identity) -> Iterator[tuple[bytes, Path, str]]:
        """Yield the files of a folder and of those in it, but for links, which are noted. Iterative."""
        todo = [(path, relative, identity)]
        while todo:
            path, relative, identity = todo.pop()
            name = printable(relative or self._corpus.name)
            if identity in self._folders:
                self.ignored.append((name, f"a folder that is read as {self._folders[identity]}"))
                continue
            self._folders[identity] = name
            if identity == self._banned:
                continue
            try:
                entries = [] if is_build(path) else self._entries(path, relative)
            except OSError as error:
                self._refuse(name, _reason(name, error))
                continue
            for entry, inner, mode, found in entries:
                if stat.S_ISDIR(mode):
                    todo.append((entry, inner, found))
                elif found in self._linked:
                    self.ignored.append((printable(inner), f"a file that is read as {self._files[found]}"))
                else:
                    # Of hard links the first by name is the file, in whatever order they are listed.
                    self._files[found] = min(self._files.get(found, printable(inner)), printable(inner))
                    yield os.fsencode(inner), Path(entry), printable(inner)

    def _entries(self, path: str, relative: str) -> list[tuple[str, str, int, Identity]]:
        """Return path, relative path, mode and identity of the files and folders in a folder; note its links."""
        prefix = relative + "/" if relative else ""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                inner = prefix + entry.name
                if entry.is_symlink():
                    self._links.append((entry.path, inner))
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed while the folder was listed
                except OSError as error:
                    self._refuse(printable(inner), _reason(printable(inner), error))
                    continue
                if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                    found.append((entry.path, inner, status.st_mode, (status.st_dev, status.st_ino)))
                else:
                    self.ignored.append((printable(inner), _kind(status.st_mode)))
        return found


def look(path: Path) -> tuple[int, Identity]:
    """Return the mode and identity of what ``path`` leads to; mode 0 where that is nothing.

    Raises:
        PermissionDeniedError: the system does not say.
    """
    try:
        found = path.stat()
    except PermissionError:
        raise PermissionDeniedError(str(path), "cannot be read", "the operating system refuses access") from None
    except (OSError, ValueError):  # Nothing there, links that lead in a circle, or no path at all.
        return 0, (-1, -1)
    return found.st_mode, (found.st_dev, found.st_ino)


def printable(name: str) -> str:
    """Return a path as valid text: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _reason(name: str, error: OSError) -> DagpackError:
    """Return the failure to list or to look at something, for a person."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(name, "cannot be read", "the operating system refuses access")
    if error.errno == errno.ENAMETOOLONG:
        hint = "name a folder inside as the corpus, or leave it out with --on-error skip"
        return DataError(name, "the path is longer than the system takes", hint=hint)
    return DiskError(name, f"listing failed: {error.strerror or error}")


def is_build(folder: str | Path) -> bool:
    """Return whether dagpack wrote the folder: an output, or one generation of one."""
    if os.path.isfile(f"{folder}/CURRENT") and os.path.isdir(f"{folder}/generations"):  # noqa: PTH112, PTH113
        return True
    manifest = Path(folder, "manifest.json")
    if not os.path.isfile(manifest):  # noqa: PTH113  # which says no where pathlib raises
        return False
    try:
        value = json.loads(manifest.read_bytes()) if manifest.stat().st_size < _LARGEST_MANIFEST else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"format_version", "fingerprint", "trie_fingerprint"} <= value.keys()
