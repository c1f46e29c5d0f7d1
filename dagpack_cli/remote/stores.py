"""An object store below one URI: listed, read, written; what goes wrong is an error of ours.

pyarrow's file systems speak to it, those of fsspec where pyarrow has none. Every request has a timeout and a
bounded number of tries, so that nothing waits for ever. Data goes through in blocks and is never in memory whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyarrow import fs

from dagpack_cli.errors import DagpackError, DiskError, NoInputError, UsageError
from dagpack_cli.remote.faults import StoreFault, speaking_to
from dagpack_cli.remote.uris import RemoteUri

__all__ = ["BLOCK_BYTES", "Facts", "Found", "Store", "open_store"]

BLOCK_BYTES = 8 << 20
_TRIES = 4
_CONNECT_SECONDS, _REQUEST_SECONDS, _GIVE_UP_SECONDS = 10.0, 60.0, 30.0
# Where opening an object tells which content it has, without sending it. Google's store tells a time that no two
# contents share (milliseconds, and it writes an object once a second at most), and would begin to send.
_TAGGED = "s3"
# What pyarrow says of a folder in Google's store in which nothing is; an error that the store itself answered with,
# its status in the text, is about the bucket.
_NOTHING_THERE = re.compile(r"No such (file or )?directory")


@dataclass(frozen=True, slots=True)
class Found:
    """An object of a listing: its name below the URI, its bytes, and when it was written, where that is told."""

    name: str
    size: int
    mtime_ns: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What an object is now: its bytes, and a tag that no other content has; empty where the store gives none."""

    size: int
    tag: str


class Store:
    """The objects below a URI.

    Args:
        uri: the place; names are relative to it.
        files: the file system that holds it.
        root: the place as that file system names it.
        missing: the kind of error where the bucket does not exist.
    """

    def __init__(self, uri: RemoteUri, files: fs.FileSystem, root: str, missing: StoreFault) -> None:
        self.uri = uri
        self._files = files
        self._root = root
        self._missing = missing

    def where(self, name: str) -> str:
        """Return the URI of an object, for messages."""
        return f"{self.uri}/{name}" if name else str(self.uri)

    def list(self, folder: str = "") -> list[Found]:
        """Return every object below the URI, or below a folder in it, in any order; nothing where there is none.

        Names are as the store has them: nobody has looked whether a file can have them.
        """
        path = self._path(folder)
        with speaking_to(self.where(folder), self._missing):
            try:  # without allow_not_found, which takes a bucket that does not exist for an empty one
                infos = self._files.get_file_info(fs.FileSelector(path, recursive=True))
            except OSError as error:
                if not _is_nothing(error):
                    raise
                return []
        start = len(self._root) + 1
        return [Found(info.path[start:], info.size, info.mtime_ns) for info in infos if info.type == fs.FileType.File]

    def find(self) -> Found | None:
        """Return the object that the URI itself names, by its last segment; None where that is no object."""
        with speaking_to(str(self.uri), self._missing):
            info = self._files.get_file_info(self._root)
        return None if info.type != fs.FileType.File else Found(self.uri.name, info.size, info.mtime_ns)

    def above(self) -> Store:
        """Return the store at the folder that the URI's object is in."""
        uri = replace(self.uri, key=self.uri.key.rpartition("/")[0])
        return Store(uri, self._files, self._root.rpartition("/")[0], self._missing)

    def stat(self, name: str) -> Facts | None:
        """Return what an object is now; None where there is none. One or two requests."""
        with speaking_to(self.where(name), self._missing):
            if self._files.type_name == _TAGGED:
                try:
                    # Nothing is unpacked: the store's bytes are wanted, whatever their name promises.
                    with self._files.open_input_stream(self._path(name), compression=None) as stream:
                        told = {key.lower(): value.decode() for key, value in (stream.metadata() or {}).items()}
                except FileNotFoundError:
                    return None
                if told.get("etag") and told.get("content-length", "").isdecimal():
                    return Facts(int(told["content-length"]), told["etag"].strip('"'))
            info = self._files.get_file_info(self._path(name))
        if info.type != fs.FileType.File:
            return None
        return Facts(info.size, "" if info.mtime_ns is None else f"{info.size}@{info.mtime_ns}")

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield an object's bytes; nothing where there is no such object."""
        with speaking_to(self.where(name), self._missing):
            try:
                stream = self._files.open_input_stream(self._path(name), compression=None)
            except FileNotFoundError:
                return
        with stream:
            while True:
                with speaking_to(self.where(name), self._missing):
                    block = stream.read(BLOCK_BYTES)
                if not block:
                    return
                yield block

    def read(self, name: str) -> bytes | None:
        """Return a small object whole; None where there is none."""
        with speaking_to(self.where(name), self._missing):
            try:
                with self._files.open_input_stream(self._path(name), compression=None) as stream:
                    data: bytes = stream.read()
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, blocks: Iterator[bytes]) -> Facts:
        """Write an object, and return what it is after that; where a block fails to come, it is taken away again.

        Raises:
            DiskError: the store has something else than was written.
        """
        size = 0
        with speaking_to(self.where(name), self._missing):
            stream = self._files.open_output_stream(self._path(name), compression=None)
        try:
            for block in blocks:
                with speaking_to(self.where(name), self._missing):
                    stream.write(block)
                size += len(block)
            with speaking_to(self.where(name), self._missing):
                stream.close()
        except Exception:  # closing is the only end that a stream has, and makes an object of what was written
            with suppress(Exception):
                stream.close()
            with suppress(DagpackError):
                self.remove(name)
            raise
        facts = self.stat(name)
        if facts is None or facts.size != size:
            found = "nothing" if facts is None else f"{facts.size:,} bytes"
            raise DiskError(self.where(name), f"{found} after an upload", f"the {size:,} bytes that were sent")
        return facts

    def remove(self, name: str) -> None:
        """Remove an object, or nothing where it is gone."""
        with speaking_to(self.where(name), self._missing), suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove every object below a folder, or nothing where there is none."""
        with speaking_to(self.where(name), self._missing):
            try:
                self._files.delete_dir(self._path(name))
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and not _is_nothing(error):
                    raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _is_nothing(error: OSError) -> bool:
    """Tell whether a listing failed because nothing is below a prefix, and not because there is no such bucket."""
    if isinstance(error, FileNotFoundError):
        return "NOT_FOUND" not in str(error)
    return _NOTHING_THERE.match(str(error)) is not None


def open_store(uri: RemoteUri, missing: StoreFault = NoInputError) -> Store:
    """Return the store of a URI, with credentials and endpoint from the environment; no bucket is looked for yet.

    Raises:
        UsageError: a setting is not of its kind, or nothing speaks this scheme.
        DagpackError: as `speaking_to`.
    """
    settings = dict(uri.settings)
    opening = _OPENERS.get(uri.scheme)
    if opening is None:
        return _open_fsspec(uri, missing)
    with speaking_to(str(uri), missing):
        return Store(uri, opening(uri, settings), uri.root, missing)


def _open_s3(uri: RemoteUri, settings: Mapping[str, str]) -> fs.FileSystem:
    scheme, _, host = uri.endpoint.rpartition("://")
    arguments: dict[str, Any] = {
        "connect_timeout": _seconds(uri, "connect_timeout", _CONNECT_SECONDS),
        "request_timeout": _seconds(uri, "request_timeout", _REQUEST_SECONDS),
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        "scheme": settings.get("scheme") or scheme or "https",
        "anonymous": _flag(uri, "anonymous"),
        "region": settings.get("region") or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or None,
    }
    if host:
        arguments |= {"endpoint_override": host.rstrip("/"), "region": arguments["region"] or "us-east-1"}
    elif arguments["region"] is None:
        arguments["region"] = fs.resolve_s3_region(uri.bucket)
    if certificates := _environment("AWS_CA_BUNDLE"):
        arguments["tls_ca_file_path"] = certificates
    try:  # one request for a small object, not three; and no empty object where an upload dies
        return fs.S3FileSystem(**arguments, allow_delayed_open=True)
    except TypeError:  # an older pyarrow
        return fs.S3FileSystem(**arguments)


def _open_gcs(uri: RemoteUri, settings: Mapping[str, str]) -> fs.FileSystem:
    scheme, _, host = uri.endpoint.rpartition("://")
    return fs.GcsFileSystem(
        # An emulator asks nobody who he is, and Google's libraries say nothing to one either.
        anonymous=_flag(uri, "anonymous") or bool(_environment("STORAGE_EMULATOR_HOST")),
        scheme=settings.get("scheme") or scheme or "https",
        endpoint_override=host.rstrip("/") or None,
        retry_time_limit=timedelta(seconds=_GIVE_UP_SECONDS),
    )


_OPENERS: dict[str, Callable[[RemoteUri, Mapping[str, str]], fs.FileSystem]] = {"s3": _open_s3, "gs": _open_gcs}


def _open_fsspec(uri: RemoteUri, missing: StoreFault) -> Store:
    """Return a store that fsspec speaks to, for a scheme that pyarrow does not know."""
    where = f"{uri.scheme}://"
    hint = "use s3://, gs:// or file://, or install fsspec and what it needs for this scheme"
    try:
        import fsspec
    except ImportError:
        raise UsageError(where, "no such scheme is known", "s3, gs or file", hint=hint) from None
    with speaking_to(str(uri), missing):
        try:
            files, root = fsspec.core.url_to_fs(f"{uri.scheme}://{uri.root}")
        except (ValueError, ImportError) as error:
            raise UsageError(where, f"fsspec does not know it: {error}", "s3, gs or file", hint=hint) from None
        return Store(uri, fs.PyFileSystem(fs.FSSpecHandler(files)), root.rstrip("/"), missing)


def _environment(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _seconds(uri: RemoteUri, name: str, default: float) -> float:
    text = dict(uri.settings).get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise UsageError(str(uri), f"{name} is {text}", "seconds, more than 0")
    return value


def _flag(uri: RemoteUri, name: str) -> bool:
    text = dict(uri.settings).get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(str(uri), f"{name} is {text}", "true or false")
    return text == "true"
