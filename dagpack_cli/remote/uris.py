"""Where a corpus or an output is: a local path, or a URI of an object store.

A URI is ``SCHEME://BUCKET/KEY``, percent-encoded, with settings of the connection behind a ``?``. Everything
that has no ``://`` is a path, and so is a ``file://`` URI.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from dagpack_cli.errors import UsageError
from dagpack_cli.remote.names import why_refused

__all__ = ["SETTINGS", "RemoteUri", "is_remote", "locate"]

# What may stand behind the question mark, of the stores that take it; credentials are in no list of ours, they come
# from the environment.
SETTINGS = {
    "s3": ("region", "scheme", "endpoint_override", "anonymous", "connect_timeout", "request_timeout"),
    "gs": ("scheme", "endpoint_override", "anonymous"),
}
_ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("STORAGE_EMULATOR_HOST",)}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class RemoteUri:
    """A place in an object store.

    Attributes:
        scheme: ``s3``, ``gs`` or another that fsspec knows.
        bucket: what stands before the first slash.
        key: what stands behind it, decoded, without a slash at its ends; empty for a whole bucket.
        is_folder: it was written with a slash at its end.
        settings: ``(name, value)`` of `SETTINGS`, sorted.
    """

    scheme: str
    bucket: str
    key: str
    is_folder: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the URI for people, without its settings."""
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    @property
    def root(self) -> str:
        """The bucket and the key as file systems take them."""
        return f"{self.bucket}/{self.key}".rstrip("/")

    @property
    def name(self) -> str:
        """The last segment, a name that a folder can have."""
        return self.key.rsplit("/", 1)[-1] or self.bucket

    @property
    def endpoint(self) -> str:
        """The server, ``HOST:PORT`` or a URL, that its settings or the environment name; empty for the usual one."""
        given = dict(self.settings).get("endpoint_override", "")
        named = (os.environ.get(name, "") for name in _ENDPOINTS.get(self.scheme, ()))
        return given or next((value for value in named if value), "")

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that differ for different places: bucket and key at an endpoint."""
        facts = [self.scheme, self.bucket, self.key, self.endpoint.rpartition("://")[2].rstrip("/")]
        return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def below(self, other: RemoteUri) -> str | None:
        """Return the name of this place below another one, empty for the same place; None where it is elsewhere."""
        if (self.scheme, self.bucket) != (other.scheme, other.bucket):
            return None
        if self.key == other.key or not other.key:
            return "" if self.key == other.key else self.key
        return self.key.removeprefix(other.key + "/") if self.key.startswith(other.key + "/") else None


def is_remote(text: str) -> bool:
    """Tell whether a text is a URI of something that is not a local file.

    >>> is_remote("s3://bucket/key"), is_remote("file:///tmp"), is_remote("out"), is_remote("./s3://out")
    (True, False, False, False)
    """
    match = _URI.match(text)
    return match is not None and match[1].lower() != "file"


def locate(text: str | Path) -> Path | RemoteUri:
    """Return the path or the URI that a text means.

    Raises:
        UsageError: a URI of another form; with credentials, which are not repeated in the message; or one
            whose key no file could have.

    >>> locate("s3://bucket/a%20b/?region=eu-west-1")
    RemoteUri(scheme='s3', bucket='bucket', key='a b', is_folder=True, settings=(('region', 'eu-west-1'),))
    >>> locate("file:///tmp/a%20b")
    PosixPath('/tmp/a b')
    """
    match = _URI.match(text) if isinstance(text, str) else None
    if isinstance(text, Path) or match is None:
        return Path(text)
    scheme = match[1].lower()
    where = f"{scheme}://..."
    try:
        parts = urlsplit(text)
        authority, key = parts.netloc, unquote(parts.path, errors="strict")
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise UsageError(where, f"no URI ({error})", "SCHEME://BUCKET/KEY") from None
    if scheme == "file":
        return _local(authority, key, where)
    if "@" in authority:
        hint = "take them out of the URI; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise UsageError(where, "credentials stand in the URI", "credentials in the environment", hint=hint)
    known = SETTINGS.get(scheme, ())
    for name, _ in given:
        if name not in known:
            raise UsageError(where, f'unknown setting "{name}"', f"one of {', '.join(known)}" if known else "none here")
    if parts.fragment:
        raise UsageError(where, "a # that is not encoded", "%23 where a key has one")
    uri = RemoteUri(scheme, authority, key.strip("/"), key.endswith("/"), tuple(sorted(given)))
    if not uri.bucket:
        raise UsageError(where, "no bucket", "SCHEME://BUCKET/KEY")
    if uri.key and (reason := why_refused(uri.key)):
        raise UsageError(str(uri), reason, "a key that a file can have as its name")
    return uri


def _local(host: str, path: str, where: str) -> Path:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise UsageError(where, "not the path of a file here", "file:///PATH", hint="write the path alone")
    return Path(path)
