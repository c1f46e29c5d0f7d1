"""Which files of a corpus are input: listed in one order, told apart by what is in them.

The order is that of the relative paths' bytes, whatever the file system lists first. Hidden
files, the output and what dagpack wrote itself are never input; everything else that is not
read is named with the reason.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dagpack_cli.corpora import sniff
from dagpack_cli.corpora.datasets import text
from dagpack_cli.corpora.files.sources import Source, stat_source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, raise_bad
from dagpack_cli.errors import DataError, DiskError, NoInputError, PermissionDeniedError

__all__ = ["Discovery", "discover"]

Identity = tuple[int, int]
_LARGEST_MANIFEST = 1 << 28


@dataclass(slots=True)
class Discovery:
    """What was found in a corpus.

    Attributes:
        inputs: the files to read, in canonical order.
        ignored: ``(name, reason)`` of everything else, in that order too.
    """

    inputs: list[Source] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)


def discover(
    corpus: Path, *, exclude: Path | None = None, options: ReadOptions | None = None, on_bad: OnBad = raise_bad
) -> Discovery:
    """Return the input files of a folder, or of a single file.

    Plain text beside structured files (a README, a licence) is ignored and named, unless the
    options say ``text``.

    Args:
        corpus: a folder, or one file.
        exclude: a folder that is never input: the output.
        options: their ``format`` is taken for every file, else the content decides.
        on_bad: called for a file whose content cannot be looked at because it is damaged.

    Raises:
        NoInputError: there is no such path, nothing in it, or nothing that can be read.
        PermissionDeniedError, DiskError: something in it cannot be read.
    """
    options = ReadOptions() if options is None else options
    found = Discovery()
    if not _look(corpus)[0]:
        raise NoInputError(str(corpus), "does not exist", "a folder or a file")
    listed = sorted(_walk(corpus, exclude, found.ignored), key=lambda item: item[0])
    for _, path, name in listed:
        try:
            format, reason = sniff.format_of_file(path, name, options)
        except DataError as error:
            on_bad(error)
            format, reason = None, error.found
        if format is None:
            found.ignored.append((name, reason))
        else:
            found.inputs.append(stat_source(path, name, format))
    if options.format is None:
        _set_text_aside(found)
    if not found.inputs:
        raise _nothing(corpus, exclude, found)
    found.ignored.sort(key=lambda item: item[0].encode("utf-8", "surrogatepass"))
    return found


def _set_text_aside(found: Discovery) -> None:
    structured = [source for source in found.inputs if source.format != text.NAME]
    if structured and len(structured) < len(found.inputs):
        reason = "plain text beside structured files; --format text reads it"
        found.ignored.extend(
            (source.name, reason if source.size else "empty") for source in found.inputs if source.format == text.NAME
        )
        found.inputs = structured


def _nothing(corpus: Path, exclude: Path | None, found: Discovery) -> NoInputError:
    if not found.ignored:
        own = _is_build(corpus) or (exclude is not None and _look(corpus)[1] == _look(exclude)[1])
        reason = "is an output of dagpack" if own else "no file in it is input"
        return NoInputError(
            str(corpus),
            reason,
            "hidden files and outputs of dagpack are never input",
            hint="give the folder of the data",
        )
    name, reason = found.ignored[0]
    named = f"{name} ({reason})" if name != corpus.name else reason
    more = f" and {len(found.ignored) - 1:,} more" if len(found.ignored) > 1 else ""
    return NoInputError(
        str(corpus),
        f"nothing in it is recognised: {named}{more}",
        "text, JSON lines, Parquet or Arrow with known fields",
        hint="name the format with --format",
    )


def _walk(corpus: Path, exclude: Path | None, ignored: list[tuple[str, str]]) -> Iterator[tuple[bytes, Path, str]]:
    """Yield ``(relative path in bytes, path, name)`` of every regular file, in any order."""
    banned = None if exclude is None else _look(exclude)[1]
    # Paths to look at, with the identities of all folders above: meeting one again is a loop.
    todo: list[tuple[Path, str, frozenset[Identity]]] = [(corpus, "", frozenset())]
    while todo:
        path, relative, above = todo.pop()
        name = _printable(relative or corpus.name)
        mode, identity = _look(path)
        if stat.S_ISREG(mode):
            yield os.fsencode(relative or corpus.name), path, name
        elif not stat.S_ISDIR(mode):
            ignored.append((name, "not a regular file" if mode else "a broken link"))
        elif identity in above:
            ignored.append((name, "a link to a folder above it"))
        elif identity != banned and not _is_build(path):
            prefix = relative + "/" if relative else ""
            inner = above | {identity}
            entries = _entries(path, name)
            todo.extend((path / entry, prefix + entry, inner) for entry in entries if not entry.startswith("."))


def _look(path: Path) -> tuple[int, Identity]:
    """Return the mode and identity of what ``path`` leads to; mode 0 where that is nothing."""
    try:
        found = path.stat()
    except PermissionError:
        raise PermissionDeniedError(str(path), "cannot be read", "the operating system refuses access") from None
    except OSError:  # Nothing there, or links that lead in a circle.
        return 0, (-1, -1)
    return found.st_mode, (found.st_dev, found.st_ino)


def _entries(folder: Path, name: str) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be listed", "the operating system refuses access") from None
    except OSError as error:
        raise DiskError(name, f"listing failed: {error.strerror or error}") from None


def _is_build(folder: Path) -> bool:
    """Return whether dagpack wrote the folder: an output, or one generation of one."""
    if (folder / "CURRENT").is_file() and (folder / "generations").is_dir():
        return True
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return False
    try:
        value = json.loads(manifest.read_bytes()) if manifest.stat().st_size < _LARGEST_MANIFEST else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"format_version", "fingerprint", "trie_fingerprint"} <= value.keys()


def _printable(name: str) -> str:
    """Return a path as valid text: bytes that are no UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
