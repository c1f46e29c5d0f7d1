"""Which files of a corpus are input: listed in one order, told apart by what is in them.

The order is that of the relative paths' bytes, whatever the file system lists first. Hidden
files, the output and what dagpack wrote itself are never input; everything else that is not
read is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagpack_cli.corpora import sniff
from dagpack_cli.corpora.datasets import text
from dagpack_cli.corpora.files.growing import STILL_WRITTEN, line_behind, whole_records
from dagpack_cli.corpora.files.sources import Sibling, Source, source_as_known, stat_source
from dagpack_cli.corpora.formats import FOLDER_FORMATS
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, raise_bad, refuse
from dagpack_cli.corpora.walk import Walk, is_build, look
from dagpack_cli.errors import DagpackError, NoInputError, Unfinished

__all__ = ["Discovery", "discover"]


@dataclass(slots=True)
class Discovery:
    """What was found in a corpus.

    Attributes:
        inputs: the files to read, in canonical order.
        ignored: ``(name, reason)`` of everything else, in that order too; and of a record that is still
            being written, its ``file:line`` and `STILL_WRITTEN`.
    """

    inputs: list[Source] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    @property
    def unfinished(self) -> list[str]:
        """Where a record was still being written."""
        return [name for name, reason in self.ignored if reason == STILL_WRITTEN]


def discover(
    corpus: Path,
    *,
    exclude: Path | None = None,
    options: ReadOptions | None = None,
    on_bad: OnBad = raise_bad,
    known: Mapping[str, Sequence[Any]] | None = None,
) -> Discovery:
    """Return the input files of a folder, or of a single file.

    Plain text beside structured files (a README, a licence) is ignored and named, unless the
    options say ``text``. Links are followed, out of the corpus too, and no file is read twice; of a
    file that is still being written, the whole records that are there now are input.

    Args:
        corpus: a folder, or one file.
        exclude: a folder that is never input: the output.
        options: their ``format`` is taken for every file, else the content decides.
        on_bad: called for a file or folder that is damaged or cannot be looked at; where it does not
            raise, that is ignored and named.
        known: by name, what `known_as` said of files with these options: one that is still so is not opened.

    Raises:
        NoInputError: there is no such path, nothing in it, or nothing that can be read.
        PermissionDeniedError, DiskError: something in it cannot be read.
    """
    options = ReadOptions() if options is None else options
    found = Discovery()
    if not look(corpus)[0]:
        raise NoInputError(str(corpus), "does not exist", "a folder or a file")

    def leave_out(name: str, error: DagpackError) -> None:
        if not isinstance(error, Unfinished):
            refuse(error, on_bad)
        found.ignored.append((name, STILL_WRITTEN if isinstance(error, Unfinished) else error.found))

    walk = Walk(corpus, exclude, leave_out)
    listed = sorted(walk, key=lambda item: item[0])
    found.ignored += walk.ignored
    damaged: list[Path] = []
    for _, path, name in listed:
        try:
            source = source_as_known(path, name, options.limits, (known or {}).get(name))
            if source is not None:
                found.inputs.append(source)
            else:
                _add(found, path, name, options)
        except DagpackError as error:
            leave_out(name, error)
            damaged.append(path)
    if options.format is None:
        _set_text_aside(found)
    _set_siblings(found, damaged)
    if not found.inputs:
        raise _nothing(corpus, exclude, found)
    found.ignored.sort(key=lambda item: item[0].encode("utf-8", "surrogatepass"))
    return found


def _add(found: Discovery, path: Path, name: str, options: ReadOptions) -> None:
    """Add a file to the inputs, or to what is ignored."""
    format, reason = sniff.format_of_file(path, name, options)
    if format is None:
        found.ignored.append((name, reason))
        return
    source = whole_records(stat_source(path, name, format, options.limits), is_text=format == text.NAME)
    if source.unfinished:
        found.ignored.append((f"{name}:{line_behind(source)}", STILL_WRITTEN))
    if source.size or not source.unfinished:
        found.inputs.append(source)


def _set_siblings(found: Discovery, damaged: Sequence[Path]) -> None:
    """Tell files of formats that take a folder for one conversation of the others in it, damaged ones too."""
    folders: dict[Path, list[Path]] = {}
    for source in found.inputs:
        if source.format in FOLDER_FORMATS:
            folders.setdefault(source.path.parent, []).append(source.path)
    if not folders:
        return
    for path in damaged:
        if path.parent in folders:
            folders[path.parent].append(path)
    siblings = {folder: tuple(Sibling.of(path) for path in paths) for folder, paths in folders.items()}
    found.inputs = [
        replace(source, siblings=siblings[source.path.parent]) if source.format in FOLDER_FORMATS else source
        for source in found.inputs
    ]


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
        own = is_build(corpus) or (exclude is not None and look(corpus)[1] == look(exclude)[1])
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
