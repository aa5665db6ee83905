from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.support.http_servers import Handler, serve
from tidegate import errors
from tidegate.http.client import SafeHttp
from tidegate.http.connections import HostLimits, KeptConnection
from tidegate.http.model import Limits

TWO_SECONDS = Limits(total=2)


class Receiver:
    def __init__(self) -> None:
        self.port = 0
        self.ports: list[int] = []
        self.bodies: list[bytes] = []
        self.act: Callable[[Handler], None] = lambda request: request.answer(200, b"{}")

    def __call__(self, request: Handler) -> None:
        self.ports.append(request.client_address[1])
        self.bodies.append(request.body())
        self.act(request)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with serve(receiver) as receiver.port:
        yield receiver


def line_to(receiver: Receiver, limits: Limits = TWO_SECONDS, *, private: bool = True) -> KeptConnection:
    return SafeHttp().line(f"http://127.0.0.1:{receiver.port}/p", allow_private=private, limits=limits)


def test_posts_share_one_connection(receiver: Receiver) -> None:
    line = line_to(receiver)
    assert [line.post(b"x%d" % n, {"a": "b"}).status for n in range(4)] == [200] * 4
    assert receiver.bodies == [b"x0", b"x1", b"x2", b"x3"]
    assert len(set(receiver.ports)) == 1


def test_private_address_is_refused(receiver: Receiver) -> None:
    with pytest.raises(errors.UrlNotAllowed):
        line_to(receiver, private=False).post(b"", {})
    assert receiver.bodies == []


def test_connection_the_server_closed_meanwhile_is_opened_again(receiver: Receiver) -> None:
    def answer_and_hang_up(request: Handler) -> None:
        request.answer(200, b"{}")
        request.close_connection = True

    receiver.act = answer_and_hang_up
    line = line_to(receiver)
    for _ in range(3):
        assert line.post(b"", {}).status == 200
        time.sleep(0.02)
    assert len(set(receiver.ports)) == 3


def test_redirect_is_returned_not_followed(receiver: Receiver) -> None:
    receiver.act = lambda request: request.answer(302, Location="http://127.0.0.1/")
    assert line_to(receiver).post(b"", {}).status == 302


def test_post_after_a_time_out_uses_a_new_connection(receiver: Receiver) -> None:
    line = line_to(receiver, Limits(total=0.2))
    receiver.act = lambda request: time.sleep(0.4)
    with pytest.raises(errors.FetchTimeout):
        line.post(b"", {})
    receiver.act = lambda request: request.answer(200, b"fresh")
    assert line.post(b"", {}).body == b"fresh"


def test_answer_too_large_or_cut_off_is_refused(receiver: Receiver) -> None:
    def cut(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(b"x")
        request.close_connection = True

    line = line_to(receiver, Limits(total=2, max_bytes=10))
    receiver.act = lambda request: request.answer(200, b"x" * 11)
    with pytest.raises(errors.ContentTooLarge):
        line.post(b"", {})
    receiver.act = cut
    with pytest.raises(errors.ConnectionFailed):
        line_to(receiver).post(b"", {})


def test_answer_cut_off_on_a_kept_connection_is_not_asked_for_again(receiver: Receiver) -> None:
    def cut(request: Handler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nx")
        request.close_connection = True

    line = line_to(receiver)
    line.post(b"1", {})
    receiver.act = cut
    with pytest.raises(errors.ConnectionFailed):
        line.post(b"2", {})
    assert receiver.bodies == [b"1", b"2"]


def test_garbage_on_a_kept_connection_is_not_asked_for_again(receiver: Receiver) -> None:
    def garbage(request: Handler) -> None:
        request.wfile.write(b"hello\r\n")
        request.close_connection = True

    line = line_to(receiver)
    line.post(b"1", {})
    receiver.act = garbage
    with pytest.raises(errors.ConnectionFailed):
        line.post(b"2", {})
    assert receiver.bodies == [b"1", b"2"]


def test_second_answer_to_one_post_is_not_the_answer_to_the_next(receiver: Receiver) -> None:
    sent = threading.Event()

    def answer_twice(request: Handler) -> None:
        body = receiver.bodies[-1]
        request.answer(200, body)
        request.wfile.flush()
        assert heard.wait(10)
        request.answer(200, body)
        request.wfile.flush()
        sent.set()

    heard = threading.Event()
    receiver.act = answer_twice
    line = line_to(receiver)
    assert line.post(b"1", {}).body == b"1"
    heard.set()
    assert sent.wait(10)
    assert line.post(b"2", {}).body == b"2"


def test_connections_that_the_server_closes_do_not_count_any_more(receiver: Receiver) -> None:
    def answer_and_close(request: Handler) -> None:
        request.answer(200, b"{}", Connection="close")
        request.close_connection = True

    def count(address: str, kind: str, window: int, amount: int) -> int:
        counted[address, kind, window] += amount
        return counted[address, kind, window]

    counted: Counter[tuple[str, str, int]] = Counter()
    receiver.act = answer_and_close
    http = SafeHttp(host_limits=HostLimits(count, connections=20))
    line = http.line(f"http://127.0.0.1:{receiver.port}/p", allow_private=True, limits=TWO_SECONDS)
    assert [line.post(b"", {}).status for _ in range(30)] == [200] * 30
    assert not counted, "one connection at a time asks nobody"


def test_closed_port_is_a_connection_failure() -> None:
    with pytest.raises(errors.ConnectionFailed) as failure:
        SafeHttp().line("http://127.0.0.1:1/", allow_private=True).post(b"", {})
    assert failure.value.detail == "the connection to 127.0.0.1 failed: Connection refused"
