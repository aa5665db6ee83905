from __future__ import annotations

import io
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_servers import Handler, certificate_for, serve
from tidegate.errors import ConnectionFailed, FetchTimeout
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits

NAME = "secure.test"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_for(NAME, tmp_path_factory.mktemp("tls"))


class Seen:
    port = 0
    server_name: str | None = None
    hosts: list[str]
    drip = False


@pytest.fixture
def secure(certificate: Path) -> Iterator[Seen]:
    seen = Seen()
    seen.hosts = []

    def route(request: Handler) -> None:
        seen.hosts.append(request.headers["Host"])
        request.body()
        if seen.drip:
            request.send_response(200)
            request.send_header("Content-Length", "1000")
            request.end_headers()
            for _ in range(40):
                request.wfile.write(b"x")
                request.wfile.flush()
                time.sleep(0.05)
        request.answer(200, b"secret")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda sock, name, ctx: setattr(seen, "server_name", name)
    with serve(route, context) as seen.port:
        yield seen


def client(certificate: Path) -> SafeHttp:
    return SafeHttp(
        resolver=lambda host, port: ["127.0.0.1"], context=ssl.create_default_context(cafile=str(certificate))
    )


def test_host_sni_and_certificate_are_those_of_the_name(certificate: Path, secure: Seen) -> None:
    http = client(certificate)
    url = f"https://{NAME}:{secure.port}/"
    assert http.send("GET", url, allow_private=True).body == b"secret"
    assert (secure.server_name, secure.hosts) == (NAME, [f"{NAME}:{secure.port}"])


def test_certificate_of_another_name_is_refused(certificate: Path, secure: Seen) -> None:
    with pytest.raises(ConnectionFailed):
        client(certificate).send("GET", f"https://wrong.test:{secure.port}/", allow_private=True)
    assert secure.hosts == []


def test_certificate_nobody_vouches_for_is_refused(secure: Seen) -> None:
    http = SafeHttp(resolver=lambda host, port: ["127.0.0.1"])
    with pytest.raises(ConnectionFailed):
        http.send("GET", f"https://{NAME}:{secure.port}/", allow_private=True)


def test_deadline_holds_over_tls(certificate: Path, secure: Seen) -> None:
    secure.drip = True
    with pytest.raises(FetchTimeout):
        client(certificate).send("GET", f"https://{NAME}:{secure.port}/", allow_private=True, limits=Limits(total=0.4))


def test_kept_connection_checks_names_and_certificates(certificate: Path, secure: Seen) -> None:
    http = client(certificate)
    line = http.line(f"https://{NAME}:{secure.port}/", allow_private=True)
    assert [line.post(b"{}", {}).body for _ in range(3)] == [b"secret"] * 3
    line.close()
    assert secure.server_name == NAME
    with pytest.raises(ConnectionFailed):
        http.line(f"https://wrong.test:{secure.port}/", allow_private=True).post(b"{}", {})
    secure.drip = True
    with pytest.raises(FetchTimeout):
        http.line(f"https://{NAME}:{secure.port}/", allow_private=True, limits=Limits(total=0.4)).post(b"{}", {})


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "pooled"])
def test_second_answer_in_the_same_record_is_not_the_next_one(certificate: Path, kept: bool) -> None:
    """It waits in the TLS layer: the socket itself has nothing to read."""

    def answer_twice(request: Handler) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + request.body()
        request.wfile.write(answer.ljust(io.DEFAULT_BUFFER_SIZE, b" ") + answer)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(answer_twice, context) as port:
        http, url = client(certificate), f"https://{NAME}:{port}/"
        line = http.line(url, allow_private=True)

        def post(body: bytes) -> bytes:
            reply = line.post(body, {}) if kept else http.send("POST", url, body=body, allow_private=True)
            return reply.body

        assert [post(body) for body in (b"1", b"2", b"3")] == [b"1", b"2", b"3"]
        line.close()
