"""A corpus in an object store, as a local folder: its files under their names, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dagpack_cli.errors import DataError, NoInputError, shorten
from dagpack_cli.remote.mirror import Mirror
from dagpack_cli.remote.names import colliding, is_hidden, why_refused
from dagpack_cli.remote.stores import Found, Store
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import CURRENT, GENERATIONS

__all__ = ["mirror_corpus"]

_INSIDE = f"/{GENERATIONS}/"
_GONE = "it was listed and cannot be opened: it was removed since, or its key ends with a slash"


def mirror_corpus(
    store: Store,
    folder: Path,
    *,
    exclude: Sequence[str] = (),
    skip_bad: bool,
    again: bool,
    workers: int,
    listener: Listener,
) -> Path:
    """Make a folder hold a corpus as it is in its store now; return the local corpus, a folder or a file.

    Hidden objects, outputs of dagpack and what is excluded are not fetched, unchanged ones not again, and copies of
    objects that are gone are removed.

    Args:
        store: at the URI of the corpus.
        folder: for copies, locked by the caller as long as the corpus is read.
        exclude: names of folders below the URI that are no input: the output.
        skip_bad: leave objects out whose names no file can have, and tell the listener; else they are errors.
        again: fetch unchanged objects too.
        workers: transfers at a time.
        listener: hears progress and notes.

    Raises:
        NoInputError: there is no such bucket, object or folder, or nothing in it that could be input.
        DataError: an object has a name that no file can have, or changes all the time.
        DagpackError: the store fails.
    """
    uri = store.uri
    if uri.key and not uri.is_folder and (single := store.find()) is not None:
        return _mirror_object(store, single, folder / "object", again=again, workers=workers, listener=listener)
    listed = store.list()
    if not listed:
        raise NoInputError(str(uri), "no object is there", "a folder with objects below it, or an object")
    wanted = _chosen(store, listed, exclude, listener, skip_bad=skip_bad)
    if not wanted:
        found = "is an output of dagpack" if "" in _outputs(listed) else f"none of {len(listed):,} objects is input"
        expected = "hidden files and outputs of dagpack are never input"
        raise NoInputError(str(uri), found, expected, hint="give the folder of the data")
    corpus = folder / "files" / uri.name
    mirror = Mirror(store, corpus, folder, workers=workers, listener=listener)
    mirror.forget_others(found.name for found in wanted)  # first: a file may be where a folder is to be
    gone = mirror.update(wanted, again=again)
    for name in sorted(gone):
        _refuse(store, name, _GONE, listener, skip_bad=skip_bad)
    mirror.forget_others({found.name for found in wanted} - set(gone))
    return corpus


def _mirror_object(store: Store, found: Found, folder: Path, *, again: bool, workers: int, listener: Listener) -> Path:
    """Copy the one object that a URI names into a folder of its own."""
    mirror = Mirror(store.above(), folder / "files", folder, workers=workers, listener=listener)
    mirror.forget_others([found.name])
    for name in mirror.update([found], again=again):
        raise NoInputError(f"{store.above().uri}/{name}", _GONE, "an object that stays there")
    return folder / "files" / found.name


def _chosen(
    store: Store, listed: list[Found], exclude: Sequence[str], listener: Listener, *, skip_bad: bool
) -> list[Found]:
    """Return the objects of a listing that may be input, in the order of their names."""
    ordered = sorted(listed, key=lambda found: found.name.encode("utf-8", "surrogatepass"))
    banned = [*exclude, *_outputs(listed)]
    times = Counter(found.name for found in ordered)
    double = colliding(found.name for found in ordered) | {name for name, number in times.items() if number > 1}
    wanted = []
    for found in ordered:
        reason = why_refused(found.name)
        if not reason and (is_hidden(found.name) or any(_is_in(found.name, folder) for folder in banned)):
            continue
        if not reason and found.name in double:
            reason = "its key is that of a folder of other objects too"
        if reason:
            _refuse(store, found.name, reason, listener, skip_bad=skip_bad)
        else:
            wanted.append(found)
    return wanted


def _refuse(store: Store, name: str, reason: str, listener: Listener, *, skip_bad: bool) -> None:
    """Raise because of an object that is no input, or tell that it is left out."""
    where = f"{store.uri}/{shorten(name, 200).strip(chr(34))}"
    if not skip_bad:
        hint = "rename or remove it, or leave it out with --on-error skip"
        raise DataError(where, reason, "an object that can be a file", hint=hint)
    listener.note(f"left out {where}: {reason}")


def _outputs(listed: list[Found]) -> set[str]:
    """Return the folders that dagpack wrote, those with CURRENT and generations; empty for the listing itself."""
    marked, filled = set(), set()
    for found in listed:
        path = f"/{found.name}"
        if path.endswith(f"/{CURRENT}"):
            marked.add(found.name[: -len(CURRENT)])
        at = path.find(_INSIDE)
        while at >= 0:
            filled.add(found.name[:at])
            at = path.find(_INSIDE, at + 1)
    return {folder.rstrip("/") for folder in marked & filled}


def _is_in(name: str, folder: str) -> bool:
    return not folder or name == folder or name.startswith(f"{folder}/")
