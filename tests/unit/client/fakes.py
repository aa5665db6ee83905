"""A fake store and a fake API over real HTTP, which fail on request."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock

if sys.version_info >= (3, 11):
    from tidegate.releases.model import goals_digest
else:  # The server, whose code that is, does not run there.

    def goals_digest(goals: Iterator[tuple[str, int, bool]]) -> str:
        parts = [f"{name}={number}{' hold' if hold else ''}".encode() for name, number, hold in sorted(goals)]
        return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))[:16]


AGENT = "agent-1"
ME = pwd.getpwuid(os.geteuid()).pw_name


def _is_open(goal: dict[str, Any], said: dict[str, dict[str, Any]]) -> bool:
    """Whether a host is sent what it misses, as `rollout.ask` has it: not what it has reached or refused."""
    last = said.get(goal["name"])
    if last is None or last["revision"] < goal["revision"]:
        return True
    return bool(last["state"] == "drifted" and goal["heal"])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Store:
    """Objects at URLs with a token. `cuts`: each entry closes one connection after that many bytes."""

    objects: dict[str, bytes] = field(default_factory=dict)
    valid_token: str = "1"
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    supports_ranges: bool = True
    seconds_a_chunk: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    silent_after_cut: bool = False
    chunk: int = 64 * 1024
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    put_headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def link(self, name: str) -> str:
        return f"{self.url}/{name}?token={self.valid_token}"

    def route(self, handler: Handler) -> None:
        parts = urlsplit(handler.path)
        name = parts.path.lstrip("/")
        if handler.command == "PUT":
            self.objects[name] = handler.body()
            self.put_headers.append({key.lower(): value for key, value in handler.headers.items()})
            handler.answer(self.statuses.pop(0) if self.statuses else 200)
            return
        self.requests.append((name, handler.headers.get("Range")))
        if parse_qs(parts.query).get("token") != [self.valid_token]:
            handler.answer(403)
        elif self.statuses:
            handler.answer(self.statuses.pop(0))
        elif name in self.silent:
            handler.answer(503)
        elif name not in self.objects:
            handler.answer(404)
        else:
            with self._counted():
                self._send(handler, name, self.objects[name])

    @property
    def running(self) -> int:
        return self._running

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def _send(self, handler: Handler, name: str, content: bytes) -> None:
        start = 0
        if self.supports_ranges and (wanted := re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")):
            start = int(wanted[1])
        if start and start >= len(content):
            handler.answer(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        stop = start + self.cuts.pop(0) if self.cuts else len(content)
        if stop < len(content) and self.silent_after_cut:
            self.silent.add(name)
        for at in range(start, min(stop, len(content)), self.chunk):
            handler.wfile.write(content[at : min(at + self.chunk, stop)])
            time.sleep(self.slow.get(name, self.seconds_a_chunk))
        handler.close_connection = stop < len(content)


@contextmanager
def running_store(**options: Any) -> Iterator[Store]:
    store = Store(**options)
    with serve(store.route) as port:
        store.url = f"http://127.0.0.1:{port}"
        yield store


@dataclass
class AgentApi:
    """The routes that agents call. `unavailable`: every call is answered with 503."""

    store: Store
    transfers: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    presences: list[dict[str, Any]] = field(default_factory=list)
    # What the host should have, what it said that it has, and the contents by their SHA-256.
    goals: list[dict[str, Any]] = field(default_factory=list)
    asks: list[dict[str, Any]] = field(default_factory=list)
    unavailable: bool = False
    refuse_results: bool = False
    # Final results that were answered with 503.
    refused: list[dict[str, Any]] = field(default_factory=list)
    # Delay of the answer to a final result, and how many answers are being delayed.
    seconds_a_report: float = 0.0
    reports_under_way: int = 0
    unknown: set[str] = field(default_factory=set)
    refused_fields: set[str] = field(default_factory=set)
    key_status: int = 200
    # Another host with this id is online.
    duplicate: bool = False
    instances: list[str | None] = field(default_factory=list)
    # A body that is sent instead of the API's answer, for requests of these methods.
    page: bytes | None = None
    page_for: tuple[str, ...] = ("GET", "POST")
    # The test is over: polls that wait are answered.
    ending: bool = False
    url: str = ""

    def add(self, name: str, content: bytes, *, directory: str = "/data", **changes: Any) -> str:
        transfer_id = f"tr-{len(self.transfers)}"
        self.store.objects.setdefault(name, content)
        self.transfers[transfer_id] = {
            "transfer_id": transfer_id,
            "container_id": "",
            "object": name,
            "expires_at": "2099-01-01T00:00:00Z",
            "file_name": name,
            "target_file_dir": directory,
            "target_user": ME,
            "signature": sha256(content),
            "size": len(content),
        } | changes
        return transfer_id

    def finals(self, transfer_id: str) -> list[dict[str, Any]]:
        return [one for one in self.results if one["transfer_id"] == transfer_id and one["error_code"] != 115]

    def progress(self, transfer_id: str) -> list[int]:
        mine = [one for one in self.results if one["transfer_id"] == transfer_id and one["error_code"] == 115]
        return [one["progress"] for one in mine]

    def wait_for(self, transfer_id: str, seconds: float = 30) -> dict[str, Any]:
        deadline = idle_clock() + seconds
        while not self.finals(transfer_id):
            assert idle_clock() < deadline, f"no result of {transfer_id}; reported: {self.results}"
            time.sleep(0.02)
        return self.finals(transfer_id)[0]

    def route(self, handler: Handler) -> None:
        body = json.loads(handler.body() or b"{}")
        self.instances.append(handler.headers.get("X-Tidegate-Instance"))
        if handler.path == "/healthz":
            handler.answer(200)
        elif self.page is not None and handler.command in self.page_for:
            handler.answer(200, self.page)
        elif self.key_status != 200:
            handler.answer(self.key_status, b'{"code": "unauthenticated", "detail": "no"}')
        elif self.duplicate:
            handler.answer(409, b'{"code": "agent_duplicate", "detail": "another host uses this id"}')
        elif self.unavailable or (self.refuse_results and handler.command == "POST"):
            self.refused += [one for one in body.get("items", ()) if one.get("error_code") != 115]
            handler.answer(503)
        elif handler.command == "POST":
            if self.seconds_a_report and any(one["error_code"] != 115 for one in body["items"]):
                self.reports_under_way += 1
                time.sleep(self.seconds_a_report)
                self.reports_under_way -= 1
            self._take(handler, body["items"])
        elif handler.command == "PUT" and handler.path.endswith("/releases"):
            self.asks.append(body)
            said = {report["name"]: report for report in body["releases"]}
            items = [
                goal | {"sending": self._send_missing(goal, body["has"])} if _is_open(goal, said) else goal
                for goal in self.goals
            ]
            handler.answer(200, json.dumps({"items": items}).encode())
        elif handler.command == "PUT":
            self.presences.append(body)
            handler.answer(200, b"{}")
        else:
            self.polls.append(time.monotonic())
            asks = handler.headers.get("X-Tidegate-Goals") != goals_digest(
                (goal["name"], goal["revision"], goal["hold"]) for goal in self.goals
            )
            handler.answer(200, json.dumps({"items": self._inbox(handler), "releases": asks}).encode())

    def _send_missing(self, goal: dict[str, Any], has: list[str]) -> list[str]:
        """Offers the content of a goal that the host does not have, as the window's Jobs do: at each ask again."""
        missing = [file for file in goal["files"] if file["signature"] not in has]
        for file in missing:
            self.add(
                file["file_name"],
                self.store.objects[file["signature"]],
                object=file["signature"],
                release=goal["name"],
                **{name: file[name] for name in ("target_file_dir", "target_user", "signature", "size")},
            )
        return [file["signature"] for file in missing]

    def _take(self, handler: Handler, items: list[dict[str, Any]]) -> None:
        if any(item["transfer_id"] in self.unknown for item in items):
            handler.answer(404, b'{"code": "not_found", "detail": "no such transfer"}')
            return
        if any(self.refused_fields & item.keys() for item in items):
            handler.answer(422, b'{"code": "invalid", "detail": "unknown field"}')
            return
        self.results += items
        handler.answer(200, json.dumps({"taken": len(items)}).encode())

    def _inbox(self, handler: Handler) -> list[dict[str, Any]]:
        deadline = time.monotonic() + min(1, int(parse_qs(urlsplit(handler.path).query)["wait"][0]))
        while not (open_transfers := [one for one in self.transfers.values() if not self.finals(one["transfer_id"])]):
            if self.ending or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return [
            {"url": self.store.link(one["object"])} | {name: value for name, value in one.items() if name != "object"}
            for one in open_transfers
        ]


@contextmanager
def running_api(store: Store) -> Iterator[AgentApi]:
    api = AgentApi(store)
    with serve(api.route) as port:
        api.url = f"http://127.0.0.1:{port}"
        yield api
