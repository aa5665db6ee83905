"""The time-out of a read is the one that the caller asked for: not that of the connect, nor of the request before.

The clock and the time-outs of the sockets run faster, so an answer after 290 s costs two seconds.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local.launcher import processes_per_core
from tests.support.http_servers import Handler, certificate_for, serve
from tidegate.errors import FetchTimeout
from tidegate.http import connections as sockets
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits

NAME = "slow.test"
# Returns the body of the answer.
Ask = Callable[[SafeHttp, str, Limits], bytes]


class FastTime:
    """Time for the sockets, and for all that computes their limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A busy machine needs more of each second.
        self.faster = max(4.0, 40.0 / processes_per_core())
        began, real = time.monotonic(), time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: began + (real() - began) * self.faster)
        for kind, base in ((sockets.PlainSocket, socket.socket), (sockets.TlsSocket, ssl.SSLSocket)):
            self._speed_up(monkeypatch, kind, base)
        # A connection that served a slow answer would count as idle for too long.
        monkeypatch.setattr(sockets, "_IDLE_SECONDS", 10_000.0)

    def _speed_up(self, monkeypatch: pytest.MonkeyPatch, kind: type, base: type[socket.socket]) -> None:
        def settimeout(sock: socket.socket, seconds: float | None) -> None:
            base.settimeout(sock, None if seconds is None else seconds / self.faster)

        def gettimeout(sock: socket.socket) -> float | None:
            seconds = base.gettimeout(sock)
            return None if seconds is None else seconds * self.faster

        monkeypatch.setattr(kind, "settimeout", settimeout, raising=False)
        monkeypatch.setattr(kind, "gettimeout", gettimeout, raising=False)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.faster)


@pytest.fixture
def fast_time(monkeypatch: pytest.MonkeyPatch) -> FastTime:
    return FastTime(monkeypatch)


class Slow:
    """Answers after `seconds` of the fast time; before that, sends one chunk if `half` is set."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep
        self.port = 0
        self.seconds = 0.0
        self.half = False
        self.calls = 0
        self.clients: set[int] = set()

    def __call__(self, request: Handler) -> None:
        self.calls += 1
        self.clients.add(request.client_address[1])
        request.body()
        if not self.half:
            self.sleep(self.seconds)
            request.answer(200, b"whole")
            return
        request.send_response(200)
        request.send_header("Content-Length", "5")
        request.end_headers()
        request.wfile.write(b"wh")
        request.wfile.flush()
        self.sleep(self.seconds)
        request.wfile.write(b"ole")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_for(NAME, tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["http", "https"])
def slow(
    request: pytest.FixtureRequest, certificate: Path, fast_time: FastTime
) -> Iterator[tuple[Slow, SafeHttp, str]]:
    server, context = Slow(fast_time.sleep), None
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    http = SafeHttp(
        resolver=lambda host, port: ["127.0.0.1"], context=ssl.create_default_context(cafile=str(certificate))
    )
    with serve(server, context) as server.port:
        yield server, http, f"{request.param}://{NAME}:{server.port}/"


def post_on_a_line(http: SafeHttp, url: str, limits: Limits) -> bytes:
    line = http.line(url, allow_private=True, limits=limits)
    try:
        return line.post(b"{}", {}).body
    finally:
        line.close()


def send(http: SafeHttp, url: str, limits: Limits) -> bytes:
    return http.send("POST", url, body=b"{}", allow_private=True, limits=limits).body


def stream(http: SafeHttp, url: str, limits: Limits) -> bytes:
    with http.stream("GET", url, allow_private=True, limits=limits) as answer:
        return b"".join(answer.chunks())


PATHS = pytest.mark.parametrize("ask", [post_on_a_line, send, stream])


@PATHS
@pytest.mark.parametrize(
    ("seconds", "half", "connect", "faster"),
    [(6, False, 5, 8), (6, True, 5, 8), (35, False, 30, 40), (35, True, 30, 40), (290, False, 90, 150)],
)
def test_answer_within_the_time_asked_for_arrives(
    slow: tuple[Slow, SafeHttp, str],
    fast_time: FastTime,
    ask: Ask,
    seconds: int,
    half: bool,
    connect: int,
    faster: int,
) -> None:
    """The connect has more than half of a real second; half: a part of the answer comes at once."""
    server, http, url = slow
    server.seconds, server.half, fast_time.faster = seconds, half, faster
    assert ask(http, url, Limits(connect=connect, read=seconds * 2, total=seconds * 2 + 60)) == b"whole"
    assert server.calls == 1


@PATHS
def test_connection_used_again_waits_as_long_as_the_new_request_asks(
    slow: tuple[Slow, SafeHttp, str], ask: Ask
) -> None:
    server, http, url = slow
    if ask is post_on_a_line:
        line = http.line(url, allow_private=True, limits=Limits(connect=30, read=100, total=100))
        asked: list[Callable[[], bytes]] = [lambda: line.post(b"{}", {}).body] * 2
    else:
        asked = [lambda: ask(http, url, Limits(connect=30, read=40, total=40))]
        asked.append(lambda: ask(http, url, Limits(connect=30, read=100, total=100)))
    assert asked[0]() == b"whole"
    server.seconds = 60
    assert asked[1]() == b"whole"
    assert (server.calls, len(server.clients)) == (2, 1)


@PATHS
@pytest.mark.parametrize("limits", [Limits(30, 40, 40), Limits(30, 40, 300), Limits(30, 300, 40)])
def test_answer_after_the_time_asked_for_is_a_time_out(
    slow: tuple[Slow, SafeHttp, str], ask: Ask, limits: Limits
) -> None:
    server, http, url = slow
    server.seconds = 100
    began = time.monotonic()
    with pytest.raises(FetchTimeout):
        ask(http, url, limits)
    assert 40 <= time.monotonic() - began < 100
    assert server.calls == 1


def test_silent_connection_sends_keep_alive_packets_before_a_gateway_forgets_it(
    slow: tuple[Slow, SafeHttp, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, http, url = slow
    connect = sockets.PlainSocket.connect

    def noted(self: socket.socket, address: object) -> None:
        connect(self, address)  # type: ignore[arg-type]
        options = (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        values.append([self.getsockopt(*option) for option in options])

    values: list[list[int]] = []
    monkeypatch.setattr(sockets.PlainSocket, "connect", noted)
    assert post_on_a_line(http, url, Limits(connect=30)) == b"whole"
    assert values[0][0] == 1
    assert values[0][1] < 350
