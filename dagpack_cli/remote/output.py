"""The published generation of an output in an object store, as a local output that readers open."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dagpack_cli.errors import DamageError, DataError, NoInputError
from dagpack_cli.locks import lock_output
from dagpack_cli.manifest import Manifest
from dagpack_cli.remote.mirror import Mirror
from dagpack_cli.remote.stores import Store
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import (
    CURRENT,
    GENERATIONS,
    MANIFEST,
    current_of,
    parse_current,
    remove_leftovers,
    write_atomic,
)

__all__ = ["RUN", "fetch_output", "published"]

RUN = "run.json"
_TRIES = 5  # a writer may publish and prune between two of our steps


def published(store: Store) -> tuple[str, str] | None:
    """Return (generation name, manifest SHA-256) as the CURRENT of a store says it; None without one.

    Raises:
        DamageError: it is not what dagpack writes.
    """
    raw = store.read(CURRENT)
    try:
        return None if raw is None else parse_current(raw, store.where(CURRENT))
    except DamageError as error:
        hint = "remove this object, and publish the output anew: dagpack build CORPUS OUT"
        raise DamageError(error.where, error.found, error.expected, hint=hint) from None


def fetch_output(
    store: Store, out: Path, *, only_manifest: bool = False, workers: int, wait: float, listener: Listener
) -> Path:
    """Make a local output of what is published in a store, and return it; every byte is checked while it comes.

    Objects that have not changed since they were fetched are not fetched again. With ``only_manifest`` the rest of
    the generation may be missing: enough for what reads nothing else.

    Args:
        store: at the URI of the output.
        out: the local output, in a folder of its own.
        only_manifest: fetch CURRENT and the manifest.
        workers: transfers at a time.
        wait: seconds to wait at most for another process that fetches the same.
        listener: hears progress.

    Raises:
        NoInputError: nothing is published there.
        DamageError: something is missing, or is not what the manifest says.
        BusyError: another process fetches into ``out``.
        DagpackError: the store fails.
    """
    with lock_output(out, wait=wait, tell=listener.note):
        for _ in range(_TRIES):
            current = published(store)
            if current is None:
                raise _unpublished(store)
            try:
                _fetch_generation(store, out, current, only_manifest=only_manifest, workers=workers, listener=listener)
            except (DamageError, DataError):
                if published(store) == current:
                    raise
                continue  # another generation is current by now, and this one was removed
            write_atomic(out / CURRENT, current_of(*current))
            remove_leftovers(out, 1)
            return out
    raise DamageError(store.where(CURRENT), "names another generation every time", hint="run the same command again")


def _unpublished(store: Store) -> NoInputError:
    found = "no finished build in it" if store.list() else "no such output"
    return NoInputError(str(store.uri), found, "an output of dagpack", hint=f"dagpack build CORPUS {store.uri}")


def _fetch_generation(
    store: Store, out: Path, current: tuple[str, str], *, only_manifest: bool, workers: int, listener: Listener
) -> None:
    name, expected = current
    folder = f"{GENERATIONS}/{name}"
    where = f"{folder}/{MANIFEST}"
    raw = store.read(where)
    digest = "nothing" if raw is None else f"sha256 {hashlib.sha256(raw).hexdigest()[:12]}"
    if raw is None or hashlib.sha256(raw).hexdigest() != expected:
        raise DamageError(store.where(where), digest, f"{expected[:12]}, as in CURRENT")
    path = out / folder
    path.mkdir(parents=True, exist_ok=True)
    manifest = Manifest.from_bytes(raw, path / MANIFEST)
    if not only_manifest:
        wanted = {f"{folder}/{entry.path}": entry for entry in manifest.files}
        listed = {found.name: found for found in store.list(folder)}
        for missing in sorted(wanted.keys() - listed.keys()):
            raise DamageError(store.where(missing), "missing", "as the manifest says")
        found = [listed[one] for one in sorted(wanted.keys() | ({f"{folder}/{RUN}"} & listed.keys()))]
        for one in found:
            if one.name in wanted and one.size != wanted[one.name].size:
                size = f"{wanted[one.name].size:,} bytes as the manifest says"
                raise DamageError(store.where(one.name), f"{one.size:,} bytes", size)
        mirror = Mirror(store, out, out.parent, workers=workers, listener=listener)
        gone = mirror.update(found, sha256={one: entry.sha256 for one, entry in wanted.items()})
        for missing in gone:
            raise DamageError(store.where(missing), "missing", "as the manifest says")
    write_atomic(path / MANIFEST, raw)  # last: a generation without one is not complete
