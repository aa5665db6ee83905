"""The agent's health: a file for `tidegate agent status`, two local HTTP pages, and systemd's watchdog."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypedDict

from tidegate_client.errors import UsageError

HEALTH_FILE = "health.json"
REFUSED_PAUSE = (300.0, 600.0)


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
    """Replaces the health file atomically. False if it cannot be written; readers notice by its age."""
    new = directory / f".{HEALTH_FILE}.new"
    try:
        new.write_text(json.dumps(health), encoding="utf-8")
        new.replace(directory / HEALTH_FILE)
    except OSError:
        return False
    return True


def read_health(directory: Path) -> Health | None:
    """The health that an agent wrote last; None if there is none."""
    try:
        found = json.loads((directory / HEALTH_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "pid" in found else None  # type: ignore[return-value]


def notify_systemd(state: str, address: str | None = None) -> None:
    """Sends `READY=1`, `WATCHDOG=1` or `STOPPING=1` to systemd; does nothing if the process is not a service."""
    address = address or os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.connect("\0" + address[1:] if address.startswith("@") else address)
        out.send(state.encode())


def pause_as_service(sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits five to ten minutes before a service whose key was refused ends and systemd starts it again.

    So hosts recover by themselves after an API refused every key by mistake, and do not all call it every few seconds.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    notify_systemd("STATUS=the API refuses the key of this host; next attempt in 5 to 10 minutes")
    left = random.uniform(*REFUSED_PAUSE)  # noqa: S311
    while left > 0:
        notify_systemd("WATCHDOG=1")
        sleep(min(left, 30.0))
        left -= 30.0


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
            """No access log: Prometheus calls every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Pages)
    except OSError as error:
        reason = f"{error.strerror}; choose another port with --metrics"
        raise UsageError(f"health and metrics cannot be served on {host}:{port}: {reason}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
