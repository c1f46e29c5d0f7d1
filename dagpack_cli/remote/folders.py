"""The local folders of remote places: one for each, below the user's cache or the folder that `--local` names."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dagpack_cli.errors import UsageError
from dagpack_cli.remote.uris import RemoteUri

__all__ = ["folder_of"]


def folder_of(uri: RemoteUri, local: Path | None) -> Path:
    """Return the folder of a place, which need not exist: ``corpus``, ``read`` and ``build`` in it have its copies.

    The folder of the cache that it is in is made, for nobody but the user: a bucket may be more private than a home.

    Args:
        uri: the place. Two that differ never share a folder.
        local: where the folders of all places are; None for ``dagpack`` in ``$XDG_CACHE_HOME``, or ``~/.cache``.

    Raises:
        UsageError: the user has no home.
        OSError: the cache cannot be made.
    """
    if local is None:
        local = _cache()
        local.mkdir(mode=0o700, parents=True, exist_ok=True)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", uri.name).strip("-.")[:40]
    return local / f"{readable or uri.scheme}-{uri.identity}"


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "dagpack"
    try:
        return Path.home() / ".cache" / "dagpack"
    except RuntimeError:
        hint = "name a folder for local copies: --local DIR"
        raise UsageError("--local", "is not given, and the user has no home", "a folder", hint=hint) from None
