"""The peer port: neighbours are served, all others get a closed connection without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import examples
from tests.support.patience import idle_clock, until
from tests.support.swarm.lab import CountingOrigin, SwarmTransfers, random_content
from tests.unit.swarm.conftest import MIB, LabHost
from tidegate.distribution.swarm import accept_key, token
from tidegate_client.swarm import port as callers
from tidegate_client.swarm import port as limits
from tidegate_client.swarm import port as server
from tidegate_client.swarm.peers import Peer, Unreachable
from tidegate_client.swarm.port import client_context, load_identity, pin_of
from tidegate_client.swarm.wire import PeerTerms, authorization, encode

NewHost = Callable[..., LabHost]
KEY = b"another key of 32 bytes, for one"


class Port:
    """A host that serves the complete file, and the token with which its neighbour host-1 calls it."""

    def __init__(self, host: LabHost, transfer: dict[str, Any], peer: dict[str, Any], content: bytes) -> None:
        self.host = host
        self.content = content
        self.id: str = transfer["swarm"]["id"]
        self.address = host.host.addresses[0]
        self.pin: str = peer["pin"]
        self.token: str = peer["token"]
        self.header = authorization("host-1", self.token)

    @contextlib.contextmanager
    def connected(self, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
        # Retries, because the port limits the new connections a second.
        for _ in range(50):
            try:
                raw = socket.create_connection(self.address, timeout=5, source_address=(source, 0))
                raw.settimeout(15)
                secured = client_context().wrap_socket(raw)
                break
            except (ConnectionError, ssl.SSLError, OSError):
                time.sleep(0.1)
        else:
            raise AssertionError("no connection")
        with secured:
            yield secured

    def ask(self, request: bytes) -> bytes:
        """Everything that is received until the first answer is complete or the port closes."""
        with self.connected() as line:
            return answer_to(line, request)

    def get(self, path: str, header: str | None = None) -> bytes:
        return self.ask(get(f"/swarm/{self.id}/{path}", header or self.header))


def get(path: str, header: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: peer\r\nAuthorization: {header}\r\n\r\n".encode()


def answer_to(line: ssl.SSLSocket, request: bytes) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        line.sendall(request)
        while True:
            head, split, body = found.partition(b"\r\n\r\n")
            if (
                split
                and b"Content-Length: " in head
                and len(body) >= int(head.split(b"Content-Length: ")[1].split()[0])
            ):
                return found
            chunk = line.recv(65536)
            if not chunk:
                return found
            found += chunk
    return found


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    content = random_content(9 * MIB + 77)
    origin = CountingOrigin(content)
    home = tmp_path_factory.mktemp("port")
    hosts = [LabHost(f"host-{n}", home / f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    (home / "file").write_bytes(content)
    with (home / "file").open("rb") as file:
        hosts[0].host.seed_existing(transfers["host-0"], file, hosts[0].pool)  # type: ignore[arg-type]
    peer = next(peer for peer in transfers["host-1"]["swarm"]["peers"] if peer["id"] == "host-0")
    yield Port(hosts[0], transfers["host-0"], peer, content)
    for host in hosts:
        host.close()
    origin.close()


def test_neighbour_gets_pieces_list_and_announcements(port: Port) -> None:
    head, _, body = port.get("piece/2").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == port.content[2 * MIB : 3 * MIB]
    assert port.get("piece/9").endswith(port.content[9 * MIB :])
    assert port.get("piece/10").startswith(b"HTTP/1.1 404 ")
    assert len(port.get("pieces").partition(b"\r\n\r\n")[2]) == 10 * 32
    with port.connected() as line:
        line.sendall(get(f"/swarm/{port.id}/have", port.header))
        assert line.recv(100).startswith(b"HTTP/1.1 200 ")
        frame = line.recv(100)
    assert int.from_bytes(frame[8:10], "little") == (1 << 10) - 1


def test_certificate_has_the_announced_pin(port: Port) -> None:
    with port.connected() as line:
        assert pin_of(line.getpeercert(binary_form=True) or b"") == port.pin
        assert line.version() == "TLSv1.3"


def ranged(port: Port, piece: int, span: str) -> bytes:
    request = get(f"/swarm/{port.id}/piece/{piece}", port.header)
    return port.ask(request.replace(b"\r\n\r\n", f"\r\nRange: bytes={span}\r\n\r\n".encode()))


def test_part_of_a_piece_is_sent_on_request(port: Port) -> None:
    head, _, body = ranged(port, 2, "1000-66535").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 206 ")
    assert body == port.content[2 * MIB + 1000 : 2 * MIB + 66536]
    assert ranged(port, 9, "0-76").endswith(port.content[9 * MIB :])


@pytest.mark.parametrize("span", ["0-1048576", "5-4", f"{MIB}-{MIB}", "0-9999999999"])
def test_range_outside_of_a_piece_closes_the_connection(port: Port, span: str) -> None:
    assert ranged(port, 0, span) == b""


def test_host_without_a_block_list_answers_404(port: Port) -> None:
    assert port.get("blocks") == b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def test_lists_take_upload_slots_as_pieces_do(port: Port) -> None:
    """Otherwise a neighbour could use the whole line by asking for lists."""
    slots = port.host.host._server._slots
    slots._held["host-1"] = limits.UPLOADS_A_PEER
    try:
        assert port.get("pieces").startswith(b"HTTP/1.1 429 ")
    finally:
        del slots._held["host-1"]
    assert port.get("pieces").startswith(b"HTTP/1.1 200 ")


def test_requests_for_missing_pieces_are_answered_slowly(port: Port) -> None:
    missing = get(f"/swarm/{port.id}/piece/77", port.header)
    with port.connected() as line:
        began = time.monotonic()
        line.sendall(missing * 8)
        found = b""
        while found.count(b"HTTP/1.1 404") < 8:
            found += line.recv(4096)
        assert time.monotonic() - began >= 7 * server.PAUSE_SECONDS


def made_with(key: bytes, callee: str, swarm: str, caller: str) -> str:
    return authorization(caller, encode(token(accept_key(key, callee), swarm, caller)))


@pytest.mark.parametrize(
    "header",
    [
        lambda port: "",
        lambda port: "Swarm",
        lambda port: f"Swarm {encode(b'host-1')}.",
        lambda port: authorization("host-1", encode(b"\0" * 16)),
        lambda port: authorization("host-1", port.token[:-2]),
        lambda port: authorization("host-2", port.token),
        lambda port: authorization("", port.token),
        lambda port: "Swarm \xff\xfe.\xff",
        lambda port: f"Bearer {port.token}",
        lambda port: made_with(KEY, "host-0", port.id, "host-1"),
    ],
    ids=["none", "bare", "empty", "zeros", "cut", "another's", "no id", "not ascii", "bearer", "another Job's key"],
)
def test_request_without_a_valid_token_gets_no_answer(port: Port, header: Callable[[Port], str]) -> None:
    for path in ("have", "pieces", "piece/0"):
        request = get(f"/swarm/{port.id}/{path}", "x").replace(
            b"x\r\n\r\n", header(port).encode("latin1") + b"\r\n\r\n"
        )
        assert port.ask(request) == b""


def test_token_of_another_callee_is_refused(port: Port, origin: CountingOrigin) -> None:
    from tests.support.swarm.lab import KEY as JOB_KEY

    assert port.get("piece/0", made_with(JOB_KEY, "host-0", port.id, "host-1")).startswith(b"HTTP/1.1 200")
    assert port.get("piece/0", made_with(JOB_KEY, "host-2", port.id, "host-1")) == b""
    assert port.get("piece/0", made_with(JOB_KEY, "host-0", "f" * 32, "host-1")) == b""


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET /swarm/{id} HTTP/1.1",
        "GET /swarm/{id}/piece/-1 HTTP/1.1",
        "GET /swarm/{id}/piece/0/../../../etc/passwd HTTP/1.1",
        "GET /swarm/{id}/piece/%30 HTTP/1.1",
        "GET /swarm/{id}/piece/99999999 HTTP/1.1",
        "GET /swarm/{id}/piece/0?x=1 HTTP/1.1",
        "GET /swarm/" + "0" * 32 + "/piece/0 HTTP/1.1",
        "GET /swarm/{id}/piece/0 HTTP/1.0",
        "POST /swarm/{id}/piece/0 HTTP/1.1",
        "PUT /swarm/{id}/piece/0 HTTP/1.1",
        "HEAD /swarm/{id}/piece/0 HTTP/1.1",
        "GET http://other/swarm/{id}/piece/0 HTTP/1.1",
        " GET /swarm/{id}/piece/0 HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_any_other_request_is_closed_even_with_a_valid_token(port: Port, line: str) -> None:
    request = f"{line.replace('{id}', port.id)}\r\nAuthorization: {port.header}\r\n\r\n".encode()
    assert port.ask(request) == b""


def test_header_of_a_megabyte_closes_the_connection(port: Port) -> None:
    huge = f"GET /swarm/{port.id}/piece/0 HTTP/1.1\r\nX: {'a' * MIB}\r\nAuthorization: {port.header}\r\n\r\n"
    assert port.ask(huge.encode()) == b""


def test_caller_cannot_change_its_agent_id_on_one_connection(port: Port) -> None:
    from tests.support.swarm.lab import KEY as JOB_KEY

    with port.connected() as line:
        assert answer_to(line, get(f"/swarm/{port.id}/piece/0", port.header)).startswith(b"HTTP/1.1 200")
        other = made_with(JOB_KEY, "host-0", port.id, "host-2")
        assert answer_to(line, get(f"/swarm/{port.id}/piece/0", other)) == b""


def test_fourth_connection_of_a_peer_is_closed(port: Port) -> None:
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(port.connected()) for _ in range(callers.CONNECTIONS_A_PEER + 1)]
        answers = [answer_to(line, get(f"/swarm/{port.id}/pieces", port.header)) for line in lines]
    assert [bool(found) for found in answers] == [True] * callers.CONNECTIONS_A_PEER + [False]


def test_old_tls_is_refused(port: Port) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)), socket.create_connection(port.address, timeout=5) as raw:
        context.wrap_socket(raw)


def test_silent_strangers_leave_room_for_neighbours(port: Port) -> None:
    """The strangers connect from one address, so the limit of an address applies; the neighbour has another."""
    unknown = port.host.host._server.callers.unknown
    with contextlib.ExitStack() as stack:

        def connect() -> bool:
            stack.enter_context(contextlib.closing(socket.create_connection(port.address, timeout=5)))
            return unknown.total() == callers.UNKNOWN_AN_ADDRESS

        until(connect)
        for _ in range(2 * callers.UNKNOWN):
            connect()
        with port.connected("127.0.0.2") as line:
            assert answer_to(line, get(f"/swarm/{port.id}/piece/0", port.header)).startswith(b"HTTP/1.1 200")
        assert unknown.total() == callers.UNKNOWN_AN_ADDRESS


@examples(40)
@given(
    st.binary(max_size=600) | st.text(st.characters(max_codepoint=255), max_size=300).map(lambda t: t.encode("latin1"))
)
def test_any_bytes_inside_tls_get_no_answer(port: Port, sent: bytes) -> None:
    assert port.ask(sent + b"\r\n\r\n") == b""


@examples(40)
@given(st.binary(min_size=1, max_size=400), st.booleans())
def test_any_bytes_instead_of_tls_do_no_harm(port: Port, sent: bytes, like_tls: bool) -> None:
    hello = b"\x16\x03\x01" + len(sent).to_bytes(2) if like_tls else b""
    with contextlib.suppress(OSError), socket.create_connection(port.address, timeout=5) as raw:
        raw.sendall(hello + sent)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):
            pass


changes = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(["insert", "replace", "remove"]), st.binary(min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, steps: list[tuple[int, str, bytes]]) -> bytes:
    for at, kind, more in steps:
        at %= len(content)
        after = at if kind == "insert" else at + len(more)
        content = content[:at] + (b"" if kind == "remove" else more) + content[after:]
    return content


@examples(60)
@given(changes, st.booleans())
def test_mutated_request_gets_a_right_answer_or_none(
    port: Port, steps: list[tuple[int, str, bytes]], in_part: bool
) -> None:
    head = get(f"/swarm/{port.id}/piece/2", port.header)[:-4]
    request = changed(head + (b"\r\nRange: bytes=5-700000" if in_part else b""), steps)
    answer, _, body = port.ask(request + b"\r\n\r\n").partition(b"\r\n\r\n")
    if answer:
        assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 206 ", b"HTTP/1.1 404 ", b"HTTP/1.1 429 "))
        assert body in port.content


def hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


@examples(40)
@given(changes)
def test_mutated_handshake_gets_no_content(port: Port, steps: list[tuple[int, str, bytes]]) -> None:
    with contextlib.suppress(OSError), socket.create_connection(port.address, timeout=5) as raw:
        raw.sendall(changed(hello(), steps) + get(f"/swarm/{port.id}/piece/0", port.header))
        raw.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := raw.recv(65536):
            found += chunk
        assert port.content[:64] not in found


def until_closed(line: socket.socket) -> float:
    """Seconds of an idle machine until the other side has closed."""
    began = idle_clock()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while line.recv(65536):
            pass
    return idle_clock() - began


def test_request_that_never_ends_is_closed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.4)
    with port.connected() as line:
        line.sendall(f"GET /swarm/{port.id}/piece/0 HTTP/1.1\r\nX: ".encode())
        feeding = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not feeding.wait(0.1):
                    line.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        took = until_closed(line)
        feeding.set()
        thread.join()
    assert took < 5.0


def test_handshake_that_never_ends_is_closed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.4)
    with socket.create_connection(port.address, timeout=8) as raw:
        raw.sendall(hello()[:40])
        assert until_closed(raw) < 5.0


def test_caller_that_reads_nothing_loses_its_upload_slot(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_SECONDS", 0.3)
    slots, cut = port.host.host._server._slots, threading.Event()
    hold = slots.hold

    @contextlib.asynccontextmanager
    async def watched(caller: str, *, near: bool) -> AsyncIterator[None]:
        try:
            async with hold(caller, near=near):
                yield
        except TimeoutError:
            cut.set()
            raise

    monkeypatch.setattr(slots, "hold", watched)
    with port.connected() as line:
        # More than all buffers in between hold; none of it is read.
        line.sendall(get(f"/swarm/{port.id}/piece/0", port.header) * 40)
        until(cut.is_set)
        until(lambda: slots._free == limits.UPLOADS and not slots._held)
        line.settimeout(5)
        found = 0
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while chunk := line.recv(MIB):
                found += len(chunk)
        assert found < 40 * MIB


def test_request_in_small_parts_is_served(port: Port) -> None:
    drawn, request = random.Random(3), get(f"/swarm/{port.id}/piece/9", port.header)
    for _ in range(8):
        with port.connected() as line:
            at = 0
            while at < len(request):
                step = drawn.randrange(1, 40)
                line.sendall(request[at : at + step])
                at += step
                time.sleep(drawn.random() * 0.02)
            assert answer_to(line, b"").endswith(port.content[9 * MIB :])


def test_port_still_serves_after_the_tests_above(port: Port) -> None:
    assert port.get("piece/0").endswith(port.content[:MIB])


def test_port_refuses_connections_without_a_swarm(new_host: NewHost, origin: CountingOrigin) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(hosts[0].host.addresses[0], timeout=2)
    planned = SwarmTransfers.of(origin, lasts=1.5)
    transfers = planned.make([host.placement for host in hosts])
    hosts[0].published.write_bytes(origin.content)
    with hosts[0].published.open("rb") as file:
        hosts[0].host.seed_existing(transfers["host-0"], file, hosts[0].pool)  # type: ignore[arg-type]

    def refuses() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(hosts[0].host.addresses[0], timeout=2).close()
            return False
        return True

    assert not refuses()
    until(refuses, seconds=4)


def test_host_with_another_certificate_is_sent_nothing(tmp_path: Path) -> None:
    """A stranger at a peer's address receives nothing, not even the token."""
    context = load_identity(tmp_path).server_context()
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def stranger() -> None:
            raw, _ = listening.accept()
            with contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as line:
                while chunk := line.recv(4096):
                    received.append(chunk)

        thread = threading.Thread(target=stranger)
        thread.start()
        terms = PeerTerms("host-0", (listening.getsockname(),), "A" * 43, "token", near=False)
        with pytest.raises(Unreachable):
            asyncio.run(Peer(terms, "0" * 32, "host-1").connect())
        thread.join(10)
    assert not thread.is_alive()
    assert received == []
