"""A server that plays the outside world: a source of files and rows, a business, and a receiver of callbacks."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tidegate_client.webhooks import verify


class Outside:
    """The content that the server serves, and the calls that it has received."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.url = ""
        self.file = b""
        self.rows: list[dict[str, Any]] = []
        self.pages = 0
        self.items: list[int] = []
        self.callbacks: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def get(self, path: str, query: dict[str, list[str]]) -> bytes:
        if path == "/file":
            return self.file
        page, size = int(query["page"][0]), int(query["page_size"][0])
        with self._lock:
            self.pages += 1
        rows = self.rows[page * size : (page + 1) * size]
        return json.dumps({"status": 200, "msg": "", "data": {"data": rows, "total": len(self.rows)}}).encode()

    def post(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Answers a POST request. Raises NotVerified if Tidegate did not sign it."""
        verify(self.secret, headers, body)
        content = json.loads(body)
        with self._lock:
            if path == "/item":
                self.items.append(content["index"])
            else:
                self.callbacks.append(content)
        return b'{"result": "ok"}'


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints no traceback if a client closes the connection. Tidegate does so with pages that it does not need."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def outside(secret: str) -> Iterator[Outside]:
    world = Outside(secret)

    class Routes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            self._answer(world.get(address.path, parse_qs(address.query)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(world.post(self.path, dict(self.headers.items()), body))

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing, because the tour itself prints what matters."""

    server = _Server(("127.0.0.1", 0), Routes)
    server.daemon_threads = True
    world.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield world
    finally:
        server.shutdown()
        server.server_close()
