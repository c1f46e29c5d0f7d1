"""A local build's generation, published in an object store: files first, its manifest, CURRENT last.

A reader of the store sees the generation that CURRENT names, whole, at any moment. Each object appears whole or
not at all; what a dead upload left has no manifest, or no CURRENT that names it, and is taken up or removed by the
next one. Object stores have no lock: CURRENT is compared with what is known before anything is built and again
right before it is replaced, and who publishes in between these two requests is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from dagpack_cli.errors import BusyError, DamageError, DiskError, MismatchError
from dagpack_cli.failpoints import step
from dagpack_cli.manifest import Manifest
from dagpack_cli.remote.output import RUN, fetch_output, published
from dagpack_cli.remote.stores import BLOCK_BYTES, Found, Store
from dagpack_cli.remote.transfers import Stopped, transfer_all
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import (
    CURRENT,
    GENERATIONS,
    MANIFEST,
    canonical_json,
    current_of,
    open_current,
    read_current,
    sha256_file,
    write_atomic,
)

__all__ = ["Publisher"]

_GENERATION = re.compile(r"\d{6}-[0-9a-f]{12}")  # nothing else below generations/ is ours
_Pointer = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a generation: its name in the output, its bytes and, where the manifest has it, its checksum."""

    name: str
    size: int
    sha256: str


class Publisher:
    """Publishes what is built in a local output in the store it belongs to.

    Args:
        store: at the URI of the output.
        folder: locked by the caller; ``out`` in it is the local output, ``published.json`` what was published
            from here last, ``uploads.jsonl`` what of it is known to be there.
        workers: transfers at a time.
        listener: hears progress and notes.
    """

    def __init__(self, store: Store, folder: Path, *, workers: int, listener: Listener) -> None:
        self.out = folder / "out"
        self._store = store
        self._known_path, self._uploads_path = folder / "published.json", folder / "uploads.jsonl"
        self._workers, self._listener = workers, listener

    def check(self, *, adopt: bool) -> None:
        """Raise unless what is published was published from here, before anything is built.

        Args:
            adopt: where it was not, fetch it into the local output, for the next build to go on from.

        Raises:
            MismatchError: somebody else published there.
            OutputError: there is no such bucket.
            DagpackError: the store fails.
        """
        there = published(self._store)
        if there is None:
            self._store.list(GENERATIONS)  # says whether the bucket exists, before the work and not after it
            if self._known() is not None:
                self._listener.note(f"nothing is published at {self._store.uri} any more: it is published anew")
            return
        if there in self._ours():
            return
        if not adopt:
            raise MismatchError(
                str(self._store.uri),
                f"generation {there[0]} is published there, which was not built in {self.out}",
                "what was published from here",
                hint="--adopt fetches it and goes on from it; --local DIR names the folder that it was built in",
            )
        fetch_output(self._store, self.out, workers=self._workers, wait=0.0, listener=self._listener)
        self._remember(there)

    def publish(self, *, keep: int) -> str:
        """Publish the current generation of the local output; return its URI. What is there is not sent again.

        Args:
            keep: generations that stay in the store, this one included.

        Raises:
            BusyError: somebody else published in the meantime.
            DamageError: a local file is not what the manifest says.
            DiskError: the store has something else than was sent.
            DagpackError: the store fails.
        """
        with open_current(self.out) as generation:
            pointer = generation.name, hashlib.sha256(generation.manifest_bytes).hexdigest()
            there = published(self._store)
            if there is not None and there not in self._ours():
                raise self._overtaken(there)
            listed = {found.name: found for found in self._store.list(GENERATIONS)}
            manifest = Manifest.from_bytes(generation.manifest_bytes, generation.path / MANIFEST)
            files = list(_files(generation.path, manifest))
            self._upload_missing(files, listed, whole=there == pointer)
            self._put_manifest(generation.name, generation.manifest_bytes, listed)
            self._point(pointer, there)
        self._remember(pointer)
        self._prune(listed, pointer[0], keep)
        return self._store.where(f"{GENERATIONS}/{pointer[0]}")

    def _ours(self) -> list[_Pointer | None]:
        """Return what may be published there without anybody else having been there."""
        local = None
        with suppress(DamageError):
            local = read_current(self.out)
        return [self._known(), local]

    def _known(self) -> _Pointer | None:
        try:
            name, digest = json.loads(self._known_path.read_bytes())
        except (OSError, ValueError, TypeError):
            return None
        return str(name), str(digest)

    def _remember(self, pointer: _Pointer) -> None:
        write_atomic(self._known_path, canonical_json(list(pointer)))

    def _overtaken(self, there: _Pointer) -> BusyError:
        return BusyError(
            str(self._store.uri),
            f"somebody else published generation {there[0]} meanwhile",
            "one build of an output at a time",
            hint="what was built here is kept; see what theirs is, then run the same command with --adopt",
        )

    def _upload_missing(self, files: list[_File], listed: dict[str, Found], *, whole: bool) -> None:
        """Send every file that is not known to be there; where they are ``whole``, as published, its look is enough."""
        sent = self._read_uploads()
        self._uploads_path.parent.mkdir(parents=True, exist_ok=True)
        todo = [file for file in files if file.name in listed and listed[file.name].size == file.size]
        missing = [file for file in files if file not in set(todo)]
        self._compact(sent, files)

        def compare(file: _File, tag: str | None) -> None:
            size, sha256, sent_tag = sent.get(file.name, (file.size, file.sha256, tag if whole else None))
            if (size, sha256) != (file.size, file.sha256) or not tag or sent_tag != tag:
                missing.append(file)

        transfer_all(lambda file, _: self._tag(file), todo, compare, self._workers)
        with self._uploads_path.open("a", encoding="utf-8") as log:
            number = 0

            def done(file: _File, tag: str) -> None:
                nonlocal number
                number += 1
                log.write(json.dumps([file.name, file.size, file.sha256, tag]) + "\n")
                log.flush()
                self._listener.progress("upload", number, len(missing))

            transfer_all(self._upload, missing, done, self._workers)

    def _tag(self, file: _File) -> str | None:
        facts = self._store.stat(file.name)
        return facts.tag if facts is not None and facts.size == file.size else None

    def _upload(self, file: _File, stop: Event) -> str:
        """Send a file, its checksum compared on the way; return its tag in the store."""
        path = self.out / file.name
        with path.open("rb") as source, step("remote-upload"):
            return self._store.write(file.name, _checked(source, path, file, stop)).tag

    def _put_manifest(self, name: str, raw: bytes, listed: dict[str, Found]) -> None:
        where = f"{GENERATIONS}/{name}/{MANIFEST}"
        if where in listed and self._store.read(where) == raw:
            return
        with step("remote-manifest"):
            self._put(where, raw)

    def _point(self, pointer: _Pointer, there: _Pointer | None) -> None:
        """Make CURRENT name a generation that is there, unless it does, or somebody else was faster."""
        if there == pointer:
            return
        now = published(self._store)
        if now != there:
            raise self._overtaken(now or ("none", ""))
        with step("remote-current"):
            self._put(CURRENT, current_of(*pointer))

    def _put(self, name: str, raw: bytes) -> None:
        """Write a small object and read it again."""
        self._store.write(name, iter([raw]))
        if self._store.read(name) != raw:
            raise DiskError(self._store.where(name), "reads otherwise than it was written", "the same bytes")

    def _prune(self, listed: dict[str, Found], current: str, keep: int) -> None:
        """Remove what dead uploads left, and all but ``keep`` generations, manifests first; never the current one.

        What has a higher number is left alone: somebody may be at work on it.
        """
        names = {name.split("/")[1] for name in listed if name.count("/") > 1}
        ours = sorted(name for name in names if _GENERATION.fullmatch(name) and name[:6] <= current[:6])
        whole = [name for name in ours if f"{GENERATIONS}/{name}/{MANIFEST}" in listed and name[:6] < current[:6]]
        kept = {current, *whole[len(whole) - min(len(whole), keep - 1) :]}
        for name in ours:
            if name not in kept:
                with step("remote-remove"):
                    self._store.remove(f"{GENERATIONS}/{name}/{MANIFEST}")  # first: what has none is nobody's
                    self._store.remove_folder(f"{GENERATIONS}/{name}")

    def _read_uploads(self) -> dict[str, tuple[int, str, str]]:
        """Return (bytes, checksum, tag) of what was sent, by name; a line that was cut by a crash is nothing."""
        sent = {}
        with suppress(OSError):
            for line in self._uploads_path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError):
                    name, size, sha256, tag = json.loads(line)
                    sent[str(name)] = int(size), str(sha256), str(tag)
        return sent

    def _compact(self, sent: dict[str, tuple[int, str, str]], files: list[_File]) -> None:
        """Write the list of what was sent anew, of this generation alone."""
        lines = [json.dumps([file.name, *sent[file.name]]) + "\n" for file in files if file.name in sent]
        write_atomic(self._uploads_path, "".join(lines).encode())


def _files(path: Path, manifest: Manifest) -> Iterator[_File]:
    """Yield every file of a generation but its manifest."""
    folder = f"{GENERATIONS}/{path.name}"
    for entry in manifest.files:
        yield _File(f"{folder}/{entry.path}", entry.size, entry.sha256)
    run = path / RUN
    if run.is_file():
        yield _File(f"{folder}/{RUN}", run.stat().st_size, sha256_file(run))


def _checked(source: IO[bytes], path: Path, file: _File, stop: Event) -> Iterator[bytes]:
    """Yield a file in blocks; raise at its end if it is not what was built."""
    digest, size = hashlib.sha256(), 0
    while block := source.read(BLOCK_BYTES):
        if stop.is_set():
            raise Stopped
        digest.update(block)
        size += len(block)
        yield block
    if size != file.size or digest.hexdigest() != file.sha256:
        found = f"sha256 {digest.hexdigest()[:12]}" if size == file.size else f"{size:,} bytes"
        expected = f"{file.sha256[:12]}, {file.size:,} bytes, as the manifest says"
        raise DamageError(str(path), found, expected)
