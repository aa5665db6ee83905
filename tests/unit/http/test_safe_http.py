from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from urllib3.exceptions import ProtocolError

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock
from tidegate import errors
from tidegate.http.client import SafeHttp, _translated
from tidegate.http.guard import Credential, read_origin
from tidegate.http.model import Limits

LOOPBACK = {"good.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}


def resolver(host: str, port: int) -> list[str]:
    return LOOPBACK.get(host, [host])


@pytest.fixture
def http() -> SafeHttp:
    """Reaches local servers by allow-listed names only: anything else at 127.0.0.1 is refused."""
    return SafeHttp(resolver=resolver, allowed_hosts=LOOPBACK)


def greet(request: Handler) -> None:
    request.answer(200, b"hello", ETag="e1")


class Site:
    """A server with a function for each path. It records the requests."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[Handler], None]] = {}
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.port = 0

    def __call__(self, request: Handler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.command, request.path, headers, request.body()))
        self.routes.get(request.path, greet)(request)

    def url(self, path: str = "/", host: str = "good.test") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    with serve(site) as site.port:
        yield site


def test_answer_comes_whole_with_lower_case_headers(http: SafeHttp, site: Site) -> None:
    reply = http.send("POST", site.url("/x?y=1"), headers={"X-One": "1"}, body=b"data")
    assert (reply.status, reply.body, reply.headers["etag"]) == (200, b"hello", "e1")
    method, path, headers, body = site.seen[0]
    assert (method, path, body, headers["x-one"]) == ("POST", "/x?y=1", b"data", "1")
    assert headers["host"] == f"good.test:{site.port}"


def test_connections_are_pooled(http: SafeHttp, site: Site) -> None:
    ports: list[int] = []

    def note_port(request: Handler) -> None:
        ports.append(request.client_address[1])
        request.answer(200, b"x")

    site.routes["/"] = note_port
    for _ in range(3):
        http.send("GET", site.url())
        with http.stream("GET", site.url()) as answer:
            assert b"".join(answer.chunks()) == b"x"
    assert len(set(ports)) == 1


@pytest.mark.parametrize(("method", "seen"), [("GET", 3), ("HEAD", 3), ("POST", 2)])
def test_request_on_a_closing_connection_is_repeated_only_if_safe(
    http: SafeHttp, site: Site, method: str, seen: int
) -> None:
    ports: list[int] = []

    def once_a_connection(request: Handler) -> None:
        if request.client_address[1] in ports:
            request.close_connection = True
            return
        ports.append(request.client_address[1])
        request.answer(200, b"x")

    site.routes["/"] = once_a_connection
    assert http.send(method, site.url()).status == 200
    if method == "POST":
        with pytest.raises(errors.ConnectionFailed):
            http.send(method, site.url())
    else:
        assert http.send(method, site.url()).status == 200
    assert len(site.seen) == seen


def test_server_that_always_closes_the_connection_is_asked_twice(http: SafeHttp, site: Site) -> None:
    site.routes["/"] = lambda request: setattr(request, "close_connection", True)
    with pytest.raises(errors.ConnectionFailed):
        http.send("GET", site.url())
    assert len(site.seen) == 2


def test_redirect_to_a_private_address_is_refused_and_not_fetched(http: SafeHttp, site: Site) -> None:
    site.routes["/go"] = lambda request: request.answer(302, Location=f"http://127.0.0.1:{site.port}/secret")
    with pytest.raises(errors.UrlNotAllowed):
        http.send("GET", site.url("/go"))
    assert [path for _, path, _, _ in site.seen] == ["/go"]


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[", "http://a..b/"])
def test_redirect_to_what_is_no_web_address_is_refused(http: SafeHttp, site: Site, location: str) -> None:
    site.routes["/go"] = lambda request: request.answer(302, Location=location)
    with pytest.raises(errors.UrlNotAllowed):
        http.send("GET", site.url("/go"))


def test_redirects_are_followed_and_lose_credentials_at_another_origin(http: SafeHttp, site: Site) -> None:
    site.routes["/a"] = lambda request: request.answer(302, Location="/b")
    site.routes["/b"] = lambda request: request.answer(307, Location=site.url("/c", "other.test"))
    secrets = {"Authorization": "Bearer k", "Cookie": "s=1", "Webhook-Signature": "v1,x", "Private-Token": "1"}
    reply = http.send("GET", site.url("/a"), headers={**secrets, "Range": "bytes=0-", "If-None-Match": "e"})
    assert (reply.status, reply.url) == (200, site.url("/c", "other.test"))
    assert site.seen[1][2]["authorization"] == "Bearer k"
    assert not site.seen[2][2].keys() & {name.lower() for name in secrets}
    assert (site.seen[2][2]["range"], site.seen[2][2]["if-none-match"]) == ("bytes=0-", "e")


@pytest.mark.parametrize(
    ("origin", "seen"),
    [
        ("http://good.test:{}", True),
        ("http://GOOD.test:{}/", True),
        ("https://good.test:{}", False),
        ("http://good.test:1", False),
        ("http://other.test:{}", False),
        ("http://good.test", False),
    ],
)
def test_credential_goes_to_its_own_origin_only(http: SafeHttp, site: Site, origin: str, seen: bool) -> None:
    credential = Credential("c", {"X-Any-Name": "s"}, frozenset({read_origin(origin.format(site.port))}))
    http.send("GET", site.url(), credential=credential, allow_private=True)
    assert ("x-any-name" in site.seen[0][2]) is seen


def test_credential_comes_back_at_its_origin_after_a_detour(http: SafeHttp, site: Site) -> None:
    site.routes["/a"] = lambda request: request.answer(302, Location=site.url("/b", "other.test"))
    site.routes["/b"] = lambda request: request.answer(302, Location=site.url("/c"))
    credential = Credential("c", {"PRIVATE-TOKEN": "s"}, frozenset({f"http://good.test:{site.port}"}))
    http.send("GET", site.url("/a"), credential=credential, allow_private=True)
    assert ["private-token" in headers for _, _, headers, _ in site.seen] == [True, False, True]


def test_credential_is_not_sent_unencrypted_without_private_urls(http: SafeHttp, site: Site) -> None:
    credential = Credential("c", {"PRIVATE-TOKEN": "s"}, frozenset({f"http://good.test:{site.port}"}))
    http.send("GET", site.url(), credential=credential)
    assert "private-token" not in site.seen[0][2]


def test_credential_does_not_print_its_headers() -> None:
    assert "5ecret" not in repr(Credential("c", {"Cookie": "5ecret"}, frozenset()))


@pytest.mark.parametrize(
    ("status", "method", "body"), [(303, "GET", b""), (302, "GET", b""), (307, "POST", b"d"), (308, "POST", b"d")]
)
def test_redirected_post_keeps_or_loses_its_body_by_status(
    http: SafeHttp, site: Site, status: int, method: str, body: bytes
) -> None:
    site.routes["/a"] = lambda request: request.answer(status, Location="/b")
    http.send("POST", site.url("/a"), body=b"d", headers={"Content-Type": "text/plain"})
    assert (site.seen[1][0], site.seen[1][3]) == (method, body)
    assert ("content-type" in site.seen[1][2]) is bool(body)


def test_loop_of_redirects_ends_after_five(http: SafeHttp, site: Site) -> None:
    site.routes["/a"] = lambda request: request.answer(302, Location="/a")
    with pytest.raises(errors.RedirectRefused):
        http.send("GET", site.url("/a"))
    assert len(site.seen) == 6


def test_redirects_may_be_forbidden(http: SafeHttp, site: Site) -> None:
    site.routes["/a"] = lambda request: request.answer(302, Location="/b")
    reply = http.send("GET", site.url("/a"), redirects=0)
    assert (reply.status, len(site.seen)) == (302, 1)
    with pytest.raises(errors.RedirectRefused):
        reply.raise_for_status()


def test_name_that_later_resolves_to_a_private_address_is_refused(site: Site) -> None:
    answers = iter([["8.8.8.8"], ["127.0.0.1"]])
    http = SafeHttp(resolver=lambda host, port: next(answers))
    http.check_url(site.url(host="rebind.test"))
    with pytest.raises(errors.UrlNotAllowed):
        http.send("GET", site.url(host="rebind.test"))
    assert site.seen == []


def test_connection_goes_to_the_address_that_was_checked(site: Site) -> None:
    looked_up: list[str] = []

    def once(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else ["169.254.169.254"]

    assert SafeHttp(resolver=once).send("GET", site.url(host="rebind.test"), allow_private=True).status == 200
    assert looked_up == ["rebind.test"]


def test_pool_opened_for_a_private_project_does_not_serve_another(site: Site) -> None:
    http = SafeHttp()
    assert http.send("GET", site.url(host="127.0.0.1"), allow_private=True).status == 200
    with pytest.raises(errors.UrlNotAllowed):
        http.send("GET", site.url(host="127.0.0.1"))


def test_body_over_the_limit_is_refused_announced_or_not(http: SafeHttp, site: Site) -> None:
    def unannounced(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(b"x" * 5000)
        request.close_connection = True

    site.routes["/announced"] = lambda request: request.answer(200, b"x" * 5000)
    site.routes["/unannounced"] = unannounced
    for path in ("/announced", "/unannounced"):
        with pytest.raises(errors.ContentTooLarge):
            http.send("GET", site.url(path), limits=Limits(max_bytes=4999))
        assert len(http.send("GET", site.url(path), limits=Limits(max_bytes=5000)).body) == 5000


def test_limit_counts_decoded_bytes(http: SafeHttp, site: Site) -> None:
    bomb = gzip.compress(b"0" * 5_000_000)
    site.routes["/"] = lambda request: request.answer(200, bomb, Content_Encoding="gzip")
    with pytest.raises(errors.ContentTooLarge):
        http.send("GET", site.url(), limits=Limits(max_bytes=1_000_000))
    with http.stream("GET", site.url()) as answer:
        assert b"".join(answer.chunks()) == bomb


@pytest.mark.parametrize("part", ["headers", "body"])
def test_slow_drip_hits_the_deadline(http: SafeHttp, site: Site, part: str) -> None:
    stop = threading.Event()

    def drip(request: Handler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 1000\r\n\r\n" if part == "body" else b"X-A: "))
        while not stop.wait(0.05):
            request.wfile.write(b"a")
        request.close_connection = True

    site.routes["/"] = drip
    started = idle_clock()
    with pytest.raises(errors.FetchTimeout):
        http.send("GET", site.url(), limits=Limits(connect=1, read=5, total=0.4))
    stop.set()
    assert idle_clock() - started < 0.8


def test_silent_server_hits_the_read_limit(http: SafeHttp, site: Site) -> None:
    site.routes["/"] = lambda request: time.sleep(0.5)
    with pytest.raises(errors.FetchTimeout):
        http.send("GET", site.url(), limits=Limits(read=0.1))


def test_cut_body_and_a_closed_port_are_connection_failures(http: SafeHttp, site: Site) -> None:
    def cut(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"x" * 500)
        request.close_connection = True

    site.routes["/cut"] = cut
    with pytest.raises(errors.ConnectionFailed):
        http.send("GET", site.url("/cut"))
    with http.stream("GET", site.url("/cut")) as answer, pytest.raises(errors.ConnectionFailed):
        list(answer.chunks())
    with pytest.raises(errors.ConnectionFailed):
        http.send("GET", "http://good.test:1/")


def test_stream_left_early_does_not_spoil_the_next_answer(http: SafeHttp, site: Site) -> None:
    site.routes["/big"] = lambda request: request.answer(200, b"b" * 3_000_000)
    with http.stream("GET", site.url("/big")) as answer:
        next(answer.chunks(1000))
    assert http.send("GET", site.url()).body == b"hello"


def test_dead_first_address_leaves_time_for_the_second(site: Site) -> None:
    """Nobody has 192.0.2.1: it refuses or does not answer, and then the other address is used."""
    http = SafeHttp(resolver=lambda host, port: ["192.0.2.1", "127.0.0.1"], allowed_hosts=["two.test"])
    assert http.send("GET", site.url(host="two.test"), limits=Limits(connect=1)).status == 200


def test_failures_are_described_in_plain_words(http: SafeHttp, site: Site) -> None:
    def cut(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"x" * 400)
        request.close_connection = True

    def detail(url: str) -> str:
        with pytest.raises(errors.FetchError) as failure:
            http.send("POST", url, limits=Limits(connect=1, read=0.3, total=2))
        return failure.value.detail

    site.routes |= {"/cut": cut, "/silent": lambda request: time.sleep(1)}
    site.routes["/gone"] = lambda request: setattr(request, "close_connection", True)

    assert detail("http://good.test:1/") == "the connection to good.test failed: Connection refused"
    assert detail(site.url("/gone")) == "the server closed the connection without an answer"
    assert detail(site.url("/cut")) == "the connection broke: 400 bytes of the answer arrived, 600 are missing"
    assert detail(site.url("/silent")) == "the server did not send any data for 0.3 s"


def test_reset_connection_is_described_in_plain_words() -> None:
    reset = ProtocolError("Connection aborted.", ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises(errors.ConnectionFailed) as failure, _translated():
        raise reset
    assert failure.value.detail == "the connection broke: Connection reset by peer"


def test_unknown_host_name_is_named(site: Site) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(errors.ConnectionFailed) as failure:
        SafeHttp(resolver=unknown).send("GET", "https://nowhere.test/")
    assert failure.value.detail == "the host name nowhere.test cannot be resolved: Name or service not known"
