"""Kept connections after a freeze of the function, or after the server closed them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.http_servers import Handler, serve
from tidegate import errors
from tidegate.http.client import SafeHttp
from tidegate.http.connections import PlainSocket


class Site:
    def __init__(self) -> None:
        self.port = 0
        self.connections: list[int] = []
        self.bodies: list[bytes] = []

    def __call__(self, request: Handler) -> None:
        body = request.body()
        if len(body) < int(request.headers.get("Content-Length") or 0):
            request.close_connection = True  # cut off: no server acts on that
            return
        self.connections.append(request.client_address[1])
        self.bodies.append(body)
        request.answer(200, b"x")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with serve(made) as made.port:
        yield made


def break_writes(monkeypatch: pytest.MonkeyPatch, failure: OSError, *, times: int = 1, after: int = 0) -> None:
    """After `after` writes, the next `times` fail."""
    real, writes = PlainSocket.sendall, count()

    def sendall(self: PlainSocket, data: Any, *flags: int) -> None:
        if after <= next(writes) < after + times:
            raise failure
        real(self, data, *flags)

    monkeypatch.setattr(PlainSocket, "sendall", sendall)


@pytest.mark.parametrize("clock", ["monotonic", "time"])
def test_pooled_connection_is_not_used_after_a_freeze(site: Site, monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    http = SafeHttp()
    http.send("POST", site.url, body=b"1", allow_private=True)
    http.send("POST", site.url, body=b"2", allow_private=True)
    real = getattr(time, clock)
    monkeypatch.setattr(time, clock, lambda: real() + 300)
    http.send("POST", site.url, body=b"3", allow_private=True)
    first, second, third = site.connections
    assert first == second != third


def test_line_is_not_used_after_a_freeze(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    line = SafeHttp().line(site.url, allow_private=True)
    line.post(b"1", {})
    line.post(b"2", {})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 300)
    line.post(b"3", {})
    first, second, third = site.connections
    assert first == second != third


@pytest.mark.parametrize("failure", [BrokenPipeError("gone"), ConnectionResetError(104, "reset")])
@pytest.mark.parametrize("after", [0, 1])
def test_post_not_written_to_a_kept_connection_is_sent_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, failure: OSError, after: int
) -> None:
    http = SafeHttp()
    http.send("POST", site.url, body=b"first", allow_private=True)
    break_writes(monkeypatch, failure, after=after)
    monkeypatch.setattr(PlainSocket, "recv_into", _reset_if_broken(PlainSocket.recv_into))
    assert http.send("POST", site.url, body=b"second", allow_private=True).status == 200
    assert site.bodies == [b"first", b"second"]


def _reset_if_broken(real: Any) -> Any:
    """After a failed write there is nothing to read, because the server is gone."""
    calls = [0]

    def recv_into(self: PlainSocket, *args: Any, **kwargs: Any) -> int:
        calls[0] += 1
        if calls[0] == 1:
            raise ConnectionResetError(104, "reset")
        return int(real(self, *args, **kwargs))

    return recv_into


def test_post_not_written_to_a_new_connection_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    break_writes(monkeypatch, BrokenPipeError("gone"))
    monkeypatch.setattr(PlainSocket, "recv_into", _reset_if_broken(PlainSocket.recv_into))
    with pytest.raises(errors.ConnectionFailed):
        SafeHttp().send("POST", site.url, body=b"x", allow_private=True)
    assert site.bodies == []


def test_post_is_sent_again_once_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    http = SafeHttp()
    http.send("POST", site.url, body=b"first", allow_private=True)
    break_writes(monkeypatch, BrokenPipeError("gone"), times=10)
    real = PlainSocket.recv_into
    monkeypatch.setattr(PlainSocket, "recv_into", lambda *_, **__: (_ for _ in ()).throw(ConnectionResetError(104, "")))
    with pytest.raises(errors.ConnectionFailed):
        http.send("POST", site.url, body=b"second", allow_private=True)
    monkeypatch.setattr(PlainSocket, "recv_into", real)
    assert site.bodies == [b"first"]
