"""Bad peers, full disks, changed part files, an unavailable S3: every delivery still ends as it should."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import idle_clock
from tests.support.swarm.lab import CountingOrigin, SwarmTransfers
from tests.unit.swarm.conftest import MIB, LabHost
from tidegate_client.download import Cancelled
from tidegate_client.errors import TransferError
from tidegate_client.swarm.host import NoSwarm
from tidegate_client.swarm.store import PieceStore

NewHost = Callable[..., LabHost]


async def garbage(_piece: int, _offset: int, length: int) -> bytes:
    return b"\0" * length


async def nothing(_piece: int, _offset: int, _length: int) -> bytes:
    await asyncio.sleep(3600)
    return b""


async def hang_up(_piece: int, _offset: int, _length: int) -> bytes:
    raise ConnectionResetError


def has_all(host: LabHost, transfer: dict[str, Any], content: bytes, read: Any = None) -> None:
    """Makes the host serve the complete file, or what `read` returns instead."""
    host.published.write_bytes(content)
    with host.published.open("rb") as file:
        host.host.seed_existing(transfer, file, host.pool)  # type: ignore[arg-type]
    session = host.host._sessions[transfer["swarm"]["id"]]
    if read is not None:
        session.read = read  # type: ignore[method-assign, union-attr]


@pytest.mark.parametrize("read", [garbage, nothing, hang_up])
def test_one_bad_neighbour_of_three_costs_only_time(origin: CountingOrigin, new_host: NewHost, read: Any) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    has_all(hosts[0], transfers["host-0"], origin.content, read)
    with ThreadPoolExecutor(3) as pool:
        figures = list(pool.map(lambda host: host.deliver(transfers[host.agent_id]), hosts[1:]))
    assert all(host.published.read_bytes() == origin.content for host in hosts[1:])
    assert origin.egress < 3
    if read is garbage:
        assert all(one["bad_pieces"] <= 2 for one in figures)
        assert {name for one in figures for name in one["bad_peers"]} == {"host-0"}
    else:
        assert not any(one["bad_pieces"] for one in figures)


def test_host_with_bad_neighbours_only_gets_the_right_file(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    for host, read in zip(hosts[1:], (garbage, garbage, hang_up), strict=True):
        has_all(host, transfers[host.agent_id], origin.content, read)
    hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content


def test_bad_piece_is_neither_published_nor_offered(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    has_all(hosts[0], transfers["host-0"], origin.content, garbage)
    wrong: list[int] = []
    finished = threading.Event()

    def watch(host: LabHost) -> None:
        while not finished.wait(0.002):
            session = host.host._sessions.get(transfers["host-0"]["swarm"]["id"])
            store = session.store if session else None
            if store is not None:
                pieces = [n for n in range(store.layout.count) if store.have >> n & 1]
                wrong.extend(n for n in pieces if not store.is_right_on_disk(n))

    watcher = threading.Thread(target=watch, args=(hosts[1],))
    watcher.start()
    try:
        hosts[1].deliver(transfers["host-1"])
    finally:
        finished.set()
        watcher.join()
    assert wrong == []


def test_restarted_host_fetches_no_piece_twice(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    half = len(origin.content) // 2
    (hosts[0].home / "part").write_bytes(origin.content[:half])
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content
    whole_pieces = half // origin.piece_size * origin.piece_size
    assert figures["origin_bytes"] - len(origin.listed) == len(origin.content) - whole_pieces


def test_part_file_changed_by_another_process_is_repaired(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = new_host("host-0")
    others = [new_host(f"host-{n}") for n in range(1, 4)]
    transfers = SwarmTransfers.of(origin).make([one.placement for one in (host, *others)])
    honest, spoiled = PieceStore.hash_ahead, threading.Event()

    def spoil_first(store: PieceStore) -> None:
        if store.have.bit_count() >= 3 and not spoiled.is_set():
            spoiled.set()
            store.write(0, b"somebody else wrote here" * 1000)
        if spoiled.is_set():
            honest(store)

    monkeypatch.setattr(PieceStore, "hash_ahead", spoil_first)
    host.deliver(transfers["host-0"])
    assert spoiled.is_set()
    assert host.published.read_bytes() == origin.content


def test_full_disk_is_noticed_before_any_piece_is_fetched(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    with pytest.raises(OSError, match="No space left"):
        hosts[0].deliver(transfers["host-0"])
    assert origin.sent <= len(origin.listed)


def test_host_without_reachable_peers_uses_s3_and_skips_the_next_swarm(
    origin: CountingOrigin, new_host: NewHost
) -> None:
    """Ports with a full backlog answer nothing, as behind a firewall that drops packets."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
            fillers.append(filler)
        host = new_host("host-0", download_rate=3_000_000.0)
        placements = [host.placement]
        for n in range(1, 6):
            placement = host.placement
            placement.agent_id, placement.listen = f"host-{n}", (f"127.0.0.1:{silent.getsockname()[1]}",)
            placements.append(placement)
        transfer = SwarmTransfers.of(origin).make(placements)["host-0"]
        began = idle_clock()
        figures = host.deliver(transfer)
        took = idle_clock() - began
        assert host.published.read_bytes() == origin.content
        assert figures["fell_back"] == "alone"
        assert took < 5.0 + len(origin.content) / 3_000_000
        host.published.unlink()
        host.host._loop.call_soon_threadsafe(host.host._end, transfer["swarm"]["id"])
        time.sleep(0.2)
        with pytest.raises(NoSwarm) as skipped:
            host.deliver(transfer)
        figures = skipped.value.figures(1000)
        assert (figures["fell_back"], figures["origin_bytes"]) == ("alone", 1000)
        for filler in fillers:
            filler.close()


def test_s3_that_fails_for_a_while_is_retried(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    origin.answer_with = 503
    threading.Timer(2.0, lambda: setattr(origin, "answer_with", None)).start()
    hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == origin.content


def test_s3_that_fails_for_longer_than_patience_fails_the_delivery(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    origin.answer_with = 503
    with pytest.raises((TransferError, NoSwarm)):
        hosts[0].deliver(transfers["host-0"], patience=2.0)


def test_missing_piece_list_means_a_direct_download_from_byte_zero(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    planned = SwarmTransfers.of(origin)
    planned.pieces_sha256 = "0" * 64
    transfers = planned.make([host.placement for host in hosts])
    with pytest.raises(NoSwarm):
        hosts[0].deliver(transfers["host-0"])
    assert (hosts[0].home / "part").stat().st_size == 0


@pytest.mark.parametrize(
    "change", [{"piece_size": 0}, {"peers": None}, {"id": "../../etc"}, {"lasts": -1}, {"seed": -5}]
)
def test_invalid_swarm_block_means_a_direct_download(
    origin: CountingOrigin, new_host: NewHost, change: dict[str, Any]
) -> None:
    host = new_host("host-0")
    placements = [host.placement, *(new_host(f"host-{n}").placement for n in range(1, 4))]
    transfer = SwarmTransfers.of(origin, changes=change).make(placements)["host-0"]
    with pytest.raises(NoSwarm):
        host.deliver(transfer)


def test_cancelled_delivery_ends_at_once_and_keeps_its_part_file(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}", download_rate=1_000_000.0) for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    threading.Timer(2.5, lambda: setattr(hosts[0], "cancelled", True)).start()
    began = idle_clock()
    with pytest.raises(Cancelled):
        hosts[0].deliver(transfers["host-0"])
    assert idle_clock() - began < 4.0
    assert (hosts[0].home / "part").stat().st_size == len(origin.content)


def test_second_container_of_a_host_copies_from_the_first(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    twin = LabHost.__new__(LabHost)
    twin.__dict__ |= hosts[0].__dict__ | {"home": hosts[0].home / "container-2"}
    twin.home.mkdir()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda host: host.deliver(transfers["host-0"]), (hosts[0], twin))
    assert twin.published.read_bytes() == hosts[0].published.read_bytes() == origin.content
    assert sorted(one["origin_bytes"] + one["peer_bytes"] > 0 for one in (first, second)) == [False, True]
    assert origin.egress < 1.1


def test_served_program_can_be_executed(new_host: NewHost, origin: CountingOrigin) -> None:
    program = b"#!/bin/sh\nexit 7\n" + b"#" * (9 * MIB)
    source = CountingOrigin(program)
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(source).make([host.placement for host in hosts])
    hosts[0].deliver(transfers["host-0"])
    hosts[0].published.chmod(stat.S_IRWXU)
    assert subprocess.run([hosts[0].published], check=False).returncode == 7
    source.close()


def test_changed_published_file_is_not_served(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    hosts[0].deliver(transfers["host-0"])
    with hosts[0].published.open("r+b") as file:
        file.write(b"new content in place")
    figures = hosts[1].deliver(transfers["host-1"])
    assert hosts[1].published.read_bytes() == origin.content
    assert figures["bad_pieces"] == 0


def test_pieces_that_are_right_on_disk_are_not_fetched(tmp_path: Path) -> None:
    """A part file full of zeros has the right digests if the file consists of zeros."""
    content = bytes(9 * MIB)
    source = CountingOrigin(content)
    host = LabHost("host-0", tmp_path / "h0")
    others = [LabHost(f"host-{n}", tmp_path / f"h{n}") for n in range(1, 4)]
    transfers = SwarmTransfers.of(source).make([one.placement for one in (host, *others)])
    (host.home / "part").write_bytes(content)
    figures = host.deliver(transfers["host-0"])
    assert figures["origin_bytes"] == len(source.listed)
    for one in (host, *others):
        one.close()
    source.close()
