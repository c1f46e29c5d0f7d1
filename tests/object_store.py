"""Servers of S3 and of Google Cloud Storage on loopback, processes of their own, and some that only refuse."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import pytest

BUCKET = "windows"
# The server asks who somebody is, not whether it is true.
_SOMEBODY = "AWS4-HMAC-SHA256 Credential=tester/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_STARTED = re.compile(r"(?:Running on http://|serving )127\.0\.0\.1:(\d+)")
_REQUEST = re.compile(r'"([A-Z]+) /([^ ?]*)(?:\?([^ ]*))? HTTP[^"]*" (\d+)')
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class ObjectStore:
    """A running server of S3, spoken to as plainly as HTTP allows: what is tested has no part in it.

    Args:
        port: on loopback.
        log: the file to which the server writes a line a request.
    """

    scheme = "s3"

    def __init__(self, port: int, log: Path) -> None:
        self.port, self._log, self._seen = port, log, 0
        self._make_bucket()

    @property
    def data(self) -> str:
        """The URI below which tests put a corpus."""
        return f"{self.scheme}://{BUCKET}/data"

    @property
    def out(self) -> str:
        """The URI at which they publish."""
        return f"{self.scheme}://{BUCKET}/out"

    def put(self, key: str, body: bytes) -> None:
        """Write an object, whatever its key."""
        self._speak("PUT", self._path(key), body)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._speak("GET", self._path(key))

    def remove(self, key: str) -> None:
        """Remove an object."""
        self._speak("DELETE", self._path(key))

    def clear(self) -> None:
        """Remove every object."""
        for key in self._keys(""):
            self.remove(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return every key with a prefix, in order, but for those of folders that are empty objects."""
        return [key for key in self._keys(prefix) if not key.endswith("/")]

    def upload(self, folder: Path, prefix: str) -> None:
        """Write every file of a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def forget(self) -> None:
        """Forget the requests up to now."""
        self._seen = self._log.stat().st_size

    def requests(self) -> list[tuple[str, str]]:
        """Return (method, key) of the requests for objects since `forget`."""
        lines = _COLOUR.sub("", self._log.read_bytes()[self._seen :].decode())
        found = (self._request(*parts) for parts in _REQUEST.findall(lines))
        return [request for request in found if request is not None]

    def fetched(self) -> list[str]:
        """Return the keys that were read since `forget`, in order of their names."""
        return sorted({key for method, key in self.requests() if method == "GET"})

    def written(self) -> list[str]:
        """Return the keys that were written since `forget`, in order of their completion."""
        return [key for method, key in self.requests() if method in ("PUT", "POST")]

    def _make_bucket(self) -> None:
        self._speak("PUT", f"/{BUCKET}")

    def _path(self, key: str) -> str:
        return f"/{BUCKET}/{quote(key, safe='/')}"

    def _keys(self, prefix: str) -> list[str]:
        listing = ET.fromstring(self._speak("GET", f"/{BUCKET}/?list-type=2&max-keys=1000&prefix={quote(prefix)}"))
        found = [entry.text or "" for entry in listing.iter("{http://s3.amazonaws.com/doc/2006-03-01/}Key")]
        return sorted(found)

    def _request(self, method: str, path: str, query: str, status: str) -> tuple[str, str] | None:
        """Return (method, key) of a line of the log; None where it is about no object."""
        del query, status
        return None if path == BUCKET else (method, unquote(path).removeprefix(f"{BUCKET}/"))

    def _speak(self, method: str, path: str, body: bytes | None = None) -> bytes:
        return self._ask(method, path, body)[1]

    def _ask(self, method: str, path: str, body: bytes | None = None, **more: str) -> tuple[HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, {"Authorization": _SOMEBODY} | more)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        assert answer.status < 300, (method, path, answer.status, data)
        return answer.headers, data


class GoogleStore(ObjectStore):
    """A running server of Google Cloud Storage's JSON API."""

    scheme = "gs"
    _objects = f"storage/v1/b/{BUCKET}/o"

    def put(self, key: str, body: bytes) -> None:
        """Write an object in two requests, the way that takes empty ones too."""
        begun = self._ask("POST", f"/upload/{self._objects}?uploadType=resumable&name={quote(key, safe='')}")[0]
        _, _, path = begun["Location"].removeprefix("http://").partition("/")
        parts = f"bytes 0-{len(body) - 1}/{len(body)}" if body else "bytes */0"
        self._ask("PUT", f"/{path}", body, **{"Content-Range": parts})

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._speak("GET", f"{self._path(key)}?alt=media")

    def _make_bucket(self) -> None:
        """Do nothing: it is there from the beginning."""

    def _path(self, key: str) -> str:
        return f"/{self._objects}/{quote(key, safe='')}"

    def _keys(self, prefix: str) -> list[str]:
        listing = json.loads(self._speak("GET", f"/{self._objects}?prefix={quote(prefix, safe='')}"))
        return sorted(entry["name"] for entry in listing.get("items", []))

    def _request(self, method: str, path: str, query: str, status: str) -> tuple[str, str] | None:
        """Return (method, key): of an upload its last part alone, of what is read the bytes and not what they are."""
        told = parse_qs(query)
        if method == "PUT":  # a part of an upload; one that is not the last is answered otherwise
            return ("PUT", told["name"][0]) if status == "200" else None
        if method == "GET" and told.get("alt") != ["media"]:
            return None
        key = unquote(path).removeprefix(f"{self._objects}/")
        return None if path.endswith("/o") else (method, key)


# The emulator of Google's store, as it comes but for three things: it says which port it got, it has room for all who
# call at once, and a client that asks whether to send a large part is not left to wait for a second.
_GOOGLE = """
import http.server, logging, sys
from gcp_storage_emulator import server

class Handler(server.RequestHandler):
    def do_PUT(self):
        if "Expect" in self.headers:
            self.send_response_only(100)
            self.end_headers()
        super().do_PUT()

http.server.HTTPServer.request_queue_size = 128
server.RequestHandler = Handler
logging.basicConfig(level=logging.INFO)
running = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=sys.argv[1])
running.start()
print("serving 127.0.0.1:%d" % running._api._httpd.server_port)
"""
_SERVERS: dict[str, tuple[type[ObjectStore], tuple[str, ...], list[str]]] = {
    "s3": (ObjectStore, ("moto", "flask"), ["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]),
    "gs": (GoogleStore, ("gcp_storage_emulator",), ["-c", _GOOGLE, BUCKET]),
}


@contextmanager
def serving(scheme: str, log: Path) -> Iterator[ObjectStore]:
    """Run a server on a free port; it ends with the block."""
    kind, modules, words = _SERVERS[scheme]
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: no server of {scheme}:// to test against")
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as stream:
        server = subprocess.Popen([sys.executable, *words], stdout=stream, stderr=stream, env=environment)
    try:
        for _ in range(600):
            if (started := _STARTED.search(log.read_text())) is not None:
                break
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        else:
            raise AssertionError(f"no server after 30 seconds: {log.read_text()}")
        yield kind(int(started[1]), log)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


@contextmanager
def answering(status: int, code: str, *, seconds: float = 0.0) -> Iterator[tuple[int, list[str]]]:
    """Run a server that answers every request alike, after a while; give its port and the requests it had."""
    requests: list[str] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            ended.wait(seconds)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def handle(self) -> None:
            """Do not mind a caller who went away."""
            with suppress(OSError):
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, requests
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
