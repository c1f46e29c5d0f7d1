"""Names of objects that become names of files: which are safe, and which would stand in each other's way."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["colliding", "is_hidden", "why_refused"]

_SEGMENT_BYTES, _NAME_BYTES = 255, 3072  # of a file name, and of a path below a folder with a path of its own


def why_refused(name: str) -> str:
    """Return why no file is made with the name of an object; nothing where one can be.

    >>> why_refused("a/b.jsonl"), why_refused("../x"), why_refused("a//b")
    ('', 'its key leads elsewhere: a segment is ".."', 'its key has an empty segment')
    """
    segments = name.split("/")
    if "" in segments:
        return "its key has an empty segment"
    for dots in (".", ".."):
        if dots in segments:
            return f'its key leads elsewhere: a segment is "{dots}"'
    if "\0" in name:
        return "its key has a null character"
    try:
        sizes = [len(segment.encode()) for segment in segments]
    except UnicodeEncodeError:
        return "its key is no valid text"
    if max(sizes) > _SEGMENT_BYTES or sum(sizes) + len(sizes) > _NAME_BYTES:
        return f"its key is longer than a path: {max(sizes):,} bytes in a segment, {sum(sizes):,} in all"
    return ""


def is_hidden(name: str) -> bool:
    """Tell whether a file or a folder on the way to it starts with a dot."""
    return any(segment.startswith(".") for segment in name.split("/"))


def colliding(names: Iterable[str]) -> set[str]:
    """Return the names that are folders of other names too: no file system has both.

    >>> colliding(["a", "a/b", "c"])
    {'a'}
    """
    files = set(names)
    folders: set[str] = set()
    for name in files:
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in folders:
                break
            folders.add(name)
    return files & folders
