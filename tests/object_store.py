"""An S3 server on loopback, a process of its own, and servers that do nothing but refuse."""

from __future__ import annotations

import http.client
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

BUCKET = "windows"
# The server asks who somebody is, not whether it is true.
_SOMEBODY = "AWS4-HMAC-SHA256 Credential=tester/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_STARTED = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")
_REQUEST = re.compile(r'"([A-Z]+) /([^ ?]*)(?:\?[^ ]*)? HTTP')
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class ObjectStore:
    """A running server, spoken to as plainly as HTTP allows: what is tested has no part in it.

    Args:
        port: on loopback.
        log: the file to which the server writes a line a request.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.port, self._log, self._seen = port, log, 0
        self._speak("PUT", "")

    def put(self, key: str, body: bytes) -> None:
        """Write an object, whatever its key."""
        self._speak("PUT", key, body)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._speak("GET", key)

    def remove(self, key: str) -> None:
        """Remove an object."""
        self._speak("DELETE", key)

    def clear(self) -> None:
        """Remove every object."""
        for key in self._keys(""):
            self.remove(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return every key with a prefix, in order, but for those of folders that are empty objects."""
        return [key for key in self._keys(prefix) if not key.endswith("/")]

    def _keys(self, prefix: str) -> list[str]:
        listing = ET.fromstring(self._speak("GET", f"?list-type=2&max-keys=1000&prefix={quote(prefix)}"))
        found = [entry.text or "" for entry in listing.iter("{http://s3.amazonaws.com/doc/2006-03-01/}Key")]
        return sorted(found)

    def upload(self, folder: Path, prefix: str) -> None:
        """Write every file of a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def forget(self) -> None:
        """Forget the requests up to now."""
        self._seen = self._log.stat().st_size

    def requests(self) -> list[tuple[str, str]]:
        """Return (method, key) of the requests since `forget`, listings left out."""
        lines = _COLOUR.sub("", self._log.read_bytes()[self._seen :].decode())
        found = [(method, unquote(path)) for method, path in _REQUEST.findall(lines)]
        return [(method, path.removeprefix(f"{BUCKET}/")) for method, path in found if path != BUCKET]

    def fetched(self) -> list[str]:
        """Return the keys that were read since `forget`, in order of their names."""
        return sorted({key for method, key in self.requests() if method == "GET"})

    def written(self) -> list[str]:
        """Return the keys that were written since `forget`, in order of their completion."""
        return [key for method, key in self.requests() if method in ("PUT", "POST")]

    def _speak(self, method: str, key: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        path = key if key.startswith("?") else quote(key, safe="/")
        headers = {"Authorization": _SOMEBODY}
        connection.request(method, f"/{BUCKET}/{path}" if key else f"/{BUCKET}", body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        assert answer.status < 300, (method, key, answer.status, data)
        return data


@contextmanager
def serving(log: Path) -> Iterator[ObjectStore]:
    """Run a server on a free port; it ends with the block."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("moto[server] is not installed: no S3 server to test against")
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as stream:
        server = subprocess.Popen(words, stdout=stream, stderr=stream, env=environment)
    try:
        for _ in range(600):
            if (started := _STARTED.search(log.read_text())) is not None:
                break
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        else:
            raise AssertionError(f"no server after 30 seconds: {log.read_text()}")
        yield ObjectStore(int(started[1]), log)
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
