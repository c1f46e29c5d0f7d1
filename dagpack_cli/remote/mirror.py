"""Local copies of objects: fetched once, told to be current by a record, never half there.

The record says of each copy which object it is of (size, time, tag) and which file it was written as (time), so
that neither an object that changed nor a copy that somebody touched is taken for current. An object is looked at
before and after it is read; one that changed in between is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from dagpack_cli.errors import DamageError, DataError
from dagpack_cli.failpoints import step
from dagpack_cli.remote.stores import Facts, Found, Store
from dagpack_cli.remote.transfers import Stopped, transfer_all
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import canonical_json, write_atomic

__all__ = ["Mirror"]

_TRIES = 3
# A store tells times in seconds and has a clock of its own: an object this young may be replaced by another of
# the same size and time, and is asked for its tag before a copy of it is trusted.
_YOUNG_SECONDS = 900
# Between two writes of the record, and what it may cost of the time: what a killed run fetched since is lost.
_RECORD_SECONDS, _RECORD_SHARE = 5.0, 0.05


@dataclass(frozen=True, slots=True)
class _Copy:
    """What the record says of a copy."""

    size: int
    mtime_ns: int | None
    tag: str
    settled: bool
    written_ns: int


class Mirror:
    """Copies of a store's objects below a folder.

    Args:
        store: where the objects are.
        folder: where the copies are.
        state: a folder on the same disk, not in the other one, for the record and for what is not whole yet; the
            caller holds a lock on both.
        workers: transfers at a time.
        listener: hears progress.
    """

    def __init__(self, store: Store, folder: Path, state: Path, *, workers: int, listener: Listener) -> None:
        self._store, self._folder = store, folder
        self._workers, self._listener = workers, listener
        self._record_path, self._partials = state / "objects.json", state / "partial"
        self._copies = self._read_record()

    def update(
        self, wanted: Iterable[Found], *, sha256: Mapping[str, str] | None = None, again: bool = False
    ) -> list[str]:
        """Fetch what is not here as it is there; return the names of objects that cannot be opened by now.

        Such an object was removed since it was listed, or its key ends with a slash, which listings do not tell.

        Args:
            wanted: objects, with names that files can have.
            sha256: what the bytes of some have to be.
            again: fetch all.

        Raises:
            DataError: an object changes all the time.
            DamageError: its bytes are not those of ``sha256``.
            DagpackError: the store fails.
        """
        objects = list(wanted)
        self._partials.mkdir(parents=True, exist_ok=True)
        try:
            return self._fetch_stale(objects, sha256 or {}, again=again)
        finally:
            names = {found.name for found in objects}
            self._copies = {name: copy for name, copy in self._copies.items() if name in names}
            self._write_record()
            for partial in self._partials.iterdir():
                with suppress(OSError):
                    partial.unlink()

    def forget_others(self, names: Iterable[str]) -> None:
        """Remove every copy, and whatever else is in the folder, but these."""
        kept = set(names)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._copies = {name: copy for name, copy in self._copies.items() if name in kept}
        for root, _, files in os.walk(self._folder, topdown=False):
            for file in files:
                path = Path(root, file)
                if path.relative_to(self._folder).as_posix() not in kept:
                    path.unlink()
            if root != str(self._folder):
                with suppress(OSError):  # something is left in it
                    Path(root).rmdir()
        self._write_record()

    def _fetch_stale(self, objects: list[Found], sha256: Mapping[str, str], *, again: bool) -> list[str]:
        stale: list[Found] = []
        young: list[Found] = []
        for found in objects:
            copy = None if again else self._current_copy(found)
            if copy is None:
                stale.append(found)
            elif not copy.settled:
                young.append(found)

        def compare(found: Found, facts: Facts | None) -> None:
            copy = self._copies[found.name]
            if facts is None or not facts.tag or facts.tag != copy.tag:
                stale.append(found)
            elif _is_settled(found):
                self._copies[found.name] = _Copy(copy.size, copy.mtime_ns, copy.tag, True, copy.written_ns)

        transfer_all(lambda found, _: self._store.stat(found.name), young, compare, self._workers)
        due, number = time.monotonic() + _RECORD_SECONDS, 0
        gone: list[str] = []

        def done(found: Found, copy: _Copy | None) -> None:
            nonlocal due, number
            number += 1
            if copy is None:
                gone.append(found.name)
            else:
                self._copies[found.name] = copy
            self._listener.progress("fetch", number, len(stale))
            if time.monotonic() > due:
                started = time.monotonic()
                self._write_record()
                ended = time.monotonic()
                due = ended + max(_RECORD_SECONDS, (ended - started) / _RECORD_SHARE)

        numbers = {found.name: number for number, found in enumerate(stale)}
        transfer_all(
            lambda found, stop: self._fetch(found, numbers[found.name], sha256.get(found.name), stop),
            stale,
            done,
            self._workers,
        )
        return gone

    def _current_copy(self, found: Found) -> _Copy | None:
        """Return what the record says of an object's copy if both are what it says."""
        copy = self._copies.get(found.name)
        if copy is None or found.mtime_ns is None or (copy.size, copy.mtime_ns) != (found.size, found.mtime_ns):
            return None
        try:
            status = os.lstat(self._folder / found.name)
        except OSError:
            return None
        return copy if (status.st_size, status.st_mtime_ns) == (copy.size, copy.written_ns) else None

    def _fetch(self, found: Found, number: int, sha256: str | None, stop: Event) -> _Copy | None:
        """Fetch an object under a name of its own, and put it in its place when it is whole; None where it is gone."""
        where = self._store.where(found.name)
        partial = self._partials / str(number)
        for _ in range(_TRIES):
            before = self._store.stat(found.name)
            if before is None:
                return None
            with step("remote-fetch"):
                digest = self._download(found.name, partial, stop)
            if self._store.stat(found.name) != before or partial.stat().st_size != before.size:
                continue  # replaced while it was read
            if sha256 is not None and digest != sha256:
                raise DamageError(where, f"sha256 {digest[:12]}", f"{sha256[:12]} as the manifest says")
            path = self._folder / found.name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.replace(path)
            written_ns = path.stat().st_mtime_ns
            # Of a store that has no tags, one that is made of the time vouches for nothing that happened since.
            return _Copy(before.size, found.mtime_ns, before.tag, _is_settled(found), written_ns)
        raise DataError(
            where,
            f"changed while it was read, {_TRIES} times",
            "an object that stays as it is for so long",
            hint="run the same command again when nothing writes to it",
        )

    def _download(self, name: str, partial: Path, stop: Event) -> str:
        digest = hashlib.sha256()
        with partial.open("wb") as file:
            for block in self._store.blocks(name):
                if stop.is_set():
                    raise Stopped
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _read_record(self) -> dict[str, _Copy]:
        try:
            value = json.loads(self._record_path.read_bytes())
            return {name: _Copy(*facts) for name, facts in value["objects"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}

    def _write_record(self) -> None:
        value: dict[str, Any] = {
            "uri": str(self._store.uri),
            "objects": {
                name: [copy.size, copy.mtime_ns, copy.tag, copy.settled, copy.written_ns]
                for name, copy in self._copies.items()
            },
        }
        with step("remote-record"):
            write_atomic(self._record_path, canonical_json(value))


def _is_settled(found: Found) -> bool:
    """Tell whether an object is so old that another one of the same time can be ruled out."""
    return found.mtime_ns is not None and time.time_ns() - found.mtime_ns > _YOUNG_SECONDS * 1_000_000_000
