"""How the agent is: a file that `tidegate agent status` reads, two local pages, and systemd's watchdog."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypedDict

HEALTH_FILE = "health.json"


class Health(TypedDict):
    agent_id: str
    pid: int
    time: float
    healthy: bool
    problems: list[str]
    connected: bool
    active: int
    untold_results: int
    partial_bytes: int
    free_bytes: int
    # -1: the API has never answered.
    last_poll_seconds: float
    restarts: dict[str, int]


def write_health(directory: Path, health: Health) -> bool:
    """Replaced in one step. False if it cannot be written: then its age tells."""
    new = directory / f".{HEALTH_FILE}.new"
    try:
        new.write_text(json.dumps(health), encoding="utf-8")
        new.replace(directory / HEALTH_FILE)
    except OSError:
        return False
    return True


def read_health(directory: Path) -> Health | None:
    try:
        found = json.loads((directory / HEALTH_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "pid" in found else None  # type: ignore[return-value]


def tell_systemd(state: str, address: str | None = None) -> None:
    """`READY=1`, `WATCHDOG=1`, `STOPPING=1`; nothing where systemd does not listen."""
    address = address or os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.connect("\0" + address[1:] if address.startswith("@") else address)
        out.send(state.encode())


@contextlib.contextmanager
def local_pages(host: str, port: int, health: Callable[[], Health], metrics: Callable[[], str]) -> Any:
    """Serves `/healthz` (200 or 503, with the reasons) and `/metrics`. Yields the port that it listens on."""

    class Pages(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
            elif self.path == "/healthz":
                found = health()
                self._answer(200 if found["healthy"] else 503, "application/json", json.dumps(found))
            else:
                self._answer(404, "text/plain; charset=utf-8", "try /healthz or /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """A scrape every few seconds is not worth a line."""

    server = ThreadingHTTPServer((host, port), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
