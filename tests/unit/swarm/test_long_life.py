"""Weeks of swarms: descriptors, connections and threads are released, and trouble with the port fails no delivery."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import idle_clock, until
from tests.support.swarm.lab import CountingOrigin, SwarmTransfers
from tests.support.template import ROOT
from tests.unit.swarm.conftest import LabHost
from tests.unit.swarm.test_port import get
from tidegate_client.download import Cancelled
from tidegate_client.swarm import host as swarm_host
from tidegate_client.swarm import peers as lists
from tidegate_client.swarm.host import NoSwarm
from tidegate_client.swarm.peers import Connection, Peer
from tidegate_client.swarm.port import PeerServer, Slots, client_context
from tidegate_client.swarm.store import PieceStore
from tidegate_client.swarm.transfers import DaemonThreads
from tidegate_client.swarm.wire import BadTerms, Layout, authorization, read_terms

NewHost = Callable[..., LabHost]


def open_files(path: Path) -> int:
    """How many descriptors of this process refer to the file, also if it was removed."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith(str(path))
        except OSError:
            continue
    return found


def fleet(new_host: NewHost, origin: CountingOrigin, **given: Any) -> tuple[list[LabHost], dict[str, dict[str, Any]]]:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    return hosts, SwarmTransfers.of(origin, **given).make([host.placement for host in hosts])


def test_delivery_that_ends_after_the_job_releases_its_file(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, origin, lasts=0.2)
    hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content
    until(lambda: not hosts[0].host._sessions.ids())
    assert open_files(hosts[0].published) == 0


def test_file_that_was_removed_is_released_before_the_job_ends(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk space is free only when the last descriptor is closed, and a Job may last for days."""
    monkeypatch.setattr(swarm_host, "LOOK_SECONDS", 0.1)
    hosts, transfers = fleet(new_host, origin)
    hosts[0].deliver(transfers["host-0"])
    time.sleep(0.5)
    assert open_files(hosts[0].published) == 1
    hosts[0].published.unlink()
    until(lambda: open_files(hosts[0].published) == 0)
    assert hosts[0].host._sessions.ids() == []


def test_part_file_that_does_not_fit_on_the_disk_is_released(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the blocks that were allocated for it stay in use until the agent restarts."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    hosts, transfers = fleet(new_host, origin)
    with pytest.raises(OSError, match="No space left"):
        hosts[0].deliver(transfers["host-0"])
    until(lambda: not hosts[0].host._sessions.ids())
    assert open_files(hosts[0].home / "part") == 0


def test_file_in_place_that_cannot_be_offered_fails_no_delivery(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_store: PieceStore) -> None:
        raise OSError("no /proc here")

    monkeypatch.setattr(PieceStore, "seal", fail)
    hosts, transfers = fleet(new_host, origin)
    hosts[0].published.write_bytes(origin.content)
    with hosts[0].published.open("rb") as file:
        hosts[0].host.seed_existing(transfers["host-0"], file, hosts[0].pool)  # type: ignore[arg-type]
    until(lambda: not hosts[0].host._sessions.ids() and not hosts[0].host._server.listening)
    assert open_files(hosts[0].published) == 0


def test_host_whose_port_is_taken_by_then_delivers_without_being_called(
    origin: CountingOrigin, new_host: NewHost
) -> None:
    """Two processes can bind a port; only one can listen on it, as while an old agent still ends."""
    hosts, transfers = fleet(new_host, origin)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(hosts[0].host.addresses[0])
        other.listen()
        hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content


def test_host_whose_certificate_is_gone_delivers_without_being_called(
    origin: CountingOrigin, new_host: NewHost
) -> None:
    hosts, transfers = fleet(new_host, origin)
    (hosts[0].home / "state" / "peer.pem").unlink()
    hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content


def test_followers_of_an_ended_swarm_are_disconnected_while_another_runs(
    origin: CountingOrigin, new_host: NewHost
) -> None:
    hosts, transfers = fleet(new_host, origin)
    hosts[0].deliver(transfers["host-0"])
    swarm_id = transfers["host-0"]["swarm"]["id"]
    other: Any = object()
    hosts[0].host._loop.call_soon_threadsafe(hosts[0].host._server.add, "f" * 32, other)
    peer = next(peer for peer in transfers["host-1"]["swarm"]["peers"] if peer["id"] == "host-0")
    with (
        socket.create_connection(hosts[0].host.addresses[0], timeout=5) as raw,
        client_context().wrap_socket(raw) as line,
    ):
        line.sendall(get(f"/swarm/{swarm_id}/have", authorization("host-1", peer["token"])))
        assert line.recv(100).startswith(b"HTTP/1.1 200 ")
        hosts[0].host._loop.call_soon_threadsafe(hosts[0].host._end, swarm_id)
        while line.recv(4096):
            pass
    until(lambda: not hosts[0].host._server.callers.known)


def test_idle_connection_that_the_peer_closed_is_not_used() -> None:
    class Closed:
        is_open = False

        def close(self) -> None:
            pass

    async def run() -> None:
        peer = Peer.__new__(Peer)
        peer._idle = [Closed()]  # type: ignore[list-item]
        made: Any = object()

        async def connect() -> Connection:
            return made  # type: ignore[no-any-return]

        peer.connect = connect  # type: ignore[method-assign]
        async with peer.connection() as connection:
            assert connection is made

    asyncio.run(run())


def test_accept_that_keeps_failing_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the process has no descriptors left."""

    async def run() -> int:
        attempts = 0
        loop = asyncio.get_running_loop()

        async def fail(_listening: socket.socket) -> Any:
            nonlocal attempts
            attempts += 1
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(loop, "sock_accept", fail)
        server = PeerServer([], client_context, Slots(), None)
        with socket.socket() as listening:
            task = loop.create_task(server._accept(listening, client_context()))
            await asyncio.sleep(1.2)
            task.cancel()
        return attempts

    with caplog.at_level(logging.WARNING, "tidegate.agent"):
        assert 2 <= asyncio.run(run()) <= 6
    assert len(caplog.records) == 1


def test_hashing_ahead_occupies_one_thread_only(tmp_path: Path) -> None:
    """Threads that waited for it could neither write nor serve: gigabytes take many seconds to hash."""
    with (tmp_path / "part").open("w+b") as file:
        store = PieceStore(file.fileno(), Layout(1000, 100), bytes(320))
    with store._hashing:
        other = threading.Thread(target=store.hash_ahead, daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive()
    store.close()


def test_checking_a_large_part_file_can_be_cancelled(tmp_path: Path) -> None:
    with (tmp_path / "part").open("w+b") as file:
        file.write(bytes(1000))
        file.flush()
        store = PieceStore(file.fileno(), Layout(1000, 100), bytes(320))

    def stop() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        store.load_existing(stop)
    store.close()


def test_part_file_survives_s3_that_is_down_when_the_agent_starts(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_ATTEMPTS", 1)
    hosts, transfers = fleet(new_host, origin)
    half = 6 * origin.piece_size
    (hosts[0].home / "part").write_bytes(origin.content[:half])
    origin.answer_with = 503
    threading.Timer(3.0, lambda: setattr(origin, "answer_with", None)).start()
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content
    assert figures["origin_bytes"] == len(origin.content) - half + len(origin.listed)


def test_piece_list_that_s3_refuses_means_a_direct_download(origin: CountingOrigin, new_host: NewHost) -> None:
    """Its URL has expired; the file's own URL is renewed."""
    hosts, transfers = fleet(new_host, origin)
    origin.answer_with = 403
    with pytest.raises(NoSwarm):
        hosts[0].deliver(transfers["host-0"])


def test_host_that_is_alone_continues_a_part_file_by_pieces(origin: CountingOrigin, new_host: NewHost) -> None:
    """A direct download would start from the beginning, as it cannot use scattered pieces."""
    hosts, transfers = fleet(new_host, origin)
    piece = origin.piece_size
    (hosts[0].home / "part").write_bytes(bytes(piece) + origin.content[piece : 6 * piece])
    hosts[0].host.reach.was_alone(5)
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content
    assert figures["origin_bytes"] == len(origin.content) - 5 * piece + len(origin.listed)


def test_daemon_threads_return_results_and_errors_and_cancel_waiting_calls() -> None:
    threads, go = DaemonThreads(1, "test"), threading.Event()
    running = threads.submit(go.wait, 5)
    failing = threads.submit(int, "x")
    go.set()
    assert running.result(5)
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(5)
    go.clear()
    busy, waiting = threads.submit(go.wait, 5), threads.submit(int, "1")
    until(busy.running)
    threads.shutdown()
    assert waiting.cancelled()
    go.set()
    assert busy.result(5)
    with pytest.raises(RuntimeError):
        threads.submit(int, "1")


SCRIPT = """
import sys, threading, time
from pathlib import Path
from tidegate_client.swarm.host import SwarmHost, SwarmOptions
host = SwarmHost("a", Path(sys.argv[1]), SwarmOptions())
host.start()
for executor in (host._tools.network, host._tools.disk):
    executor.submit(time.sleep, 60)
time.sleep(0.2)
host.close()
"""


def test_call_that_hangs_does_not_delay_the_end_of_the_process(tmp_path: Path) -> None:
    """S3 that accepts a connection and says nothing holds a thread for 20 seconds."""
    path = os.pathsep.join(str(ROOT / part) for part in ("layers/core", "layers/client"))
    began = idle_clock()
    subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], check=True, timeout=250, env={**os.environ, "PYTHONPATH": path}
    )
    assert idle_clock() - began < 15


@pytest.mark.parametrize(
    "change",
    [
        {"number": float("inf")},
        {"peers": [{"id": "b", "at": [7], "pin": "p", "token": "t", "near": True}]},
        {"peers": ["b"]},
        {"peers": {"b": 1}},
        {"accept": ""},
        {"lasts": float("nan")},
        {"members": 0},
    ],
    ids=str,
)
def test_swarm_block_with_unreadable_values_is_refused(
    origin: CountingOrigin, new_host: NewHost, change: dict[str, Any]
) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    block = SwarmTransfers.of(origin).make([host.placement for host in hosts])["host-0"]["swarm"]
    with pytest.raises(BadTerms):
        read_terms(block | change, len(origin.content))
