"""Hosts with an older version of the file fetch only what changed, from each other and from S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.swarm.lab import CountingOrigin, SwarmTransfers, next_release, random_content
from tests.unit.swarm.conftest import MIB, LabHost
from tidegate_client.swarm.peers import Connection, Peer
from tidegate_client.swarm.store import PieceStore

NewHost = Callable[..., LabHost]
OLD = random_content(12 * MIB)


@pytest.fixture
def release() -> Iterator[CountingOrigin]:
    made = CountingOrigin(next_release(OLD))
    yield made
    made.close()


def fleet(new_host: NewHost, release: CountingOrigin, *, old: bytes | None = OLD, **given: Any) -> tuple[Any, Any]:
    hosts = [new_host(f"host-{n}") for n in range(4)]
    for host in hosts:
        if old is not None:
            host.published.write_bytes(old)
    return hosts, SwarmTransfers.of(release, **given).make([host.placement for host in hosts])


def deliver_all(hosts: list[LabHost], transfers: Any) -> list[Any]:
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda host: host.deliver(transfers[host.agent_id]), hosts))


def test_release_with_three_percent_changed_moves_a_tenth_of_its_bytes(
    release: CountingOrigin, new_host: NewHost
) -> None:
    hosts, transfers = fleet(new_host, release)
    figures = deliver_all(hosts, transfers)
    assert all(host.published.read_bytes() == release.content for host in hosts)
    lists = len(release.listed) + len(release.blocks)
    for one in figures:
        moved = one["origin_bytes"] + one["peer_bytes"]
        assert moved <= 0.1 * len(release.content) + lists
        assert one["reused_bytes"] >= 0.9 * len(release.content)
    # Four hosts: each missing block leaves S3 once or twice, not once for each host.
    assert release.egress <= 0.2


def test_host_without_an_old_version_is_served_by_hosts_with_one(release: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, release)
    hosts[0].published.unlink()
    deliver_all(hosts[1:], transfers)
    before = release.sent
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == release.content
    assert "reused_bytes" not in figures
    assert figures["peer_bytes"] == len(release.content)
    assert release.sent == before


@pytest.mark.parametrize("old", [b"", b"small", random_content(12 * MIB, seed=77)], ids=["empty", "small", "unlike"])
def test_useless_old_file_has_no_effect(release: CountingOrigin, new_host: NewHost, old: bytes) -> None:
    hosts, transfers = fleet(new_host, release, old=old)
    hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == release.content


def test_transfer_without_a_block_list_is_fetched_whole(release: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, release, changes={"blocks_sha256": None, "blocks_url": None})
    figures = hosts[0].deliver(transfers["host-0"])
    assert figures["origin_bytes"] == len(release.content) + len(release.listed)
    assert "reused_bytes" not in figures


def test_block_list_with_a_wrong_digest_is_not_used(release: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, release, changes={"blocks_sha256": "0" * 64})
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == release.content
    assert figures["reused_bytes"] == 0


def test_only_the_sender_of_a_wrong_block_is_blamed(release: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, release)
    bad = hosts[0]
    bad.published.write_bytes(release.content)
    with bad.published.open("rb") as file:
        bad.host.seed_existing(transfers["host-0"], file, bad.pool)

    async def garbage(_piece: int, _offset: int, length: int) -> bytes:
        return b"\0" * length

    session: Any = bad.host._sessions[transfers["host-0"]["swarm"]["id"]]
    session.read = garbage
    figures = deliver_all(hosts[1:], transfers)
    assert all(host.published.read_bytes() == release.content for host in hosts[1:])
    assert {name for one in figures for name in one["bad_peers"]} <= {"host-0"}
    assert all(one["bad_pieces"] <= 2 for one in figures)


def test_block_spoiled_on_disk_is_fetched_and_no_peer_blamed(
    release: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, transfers = fleet(new_host, release)
    honest = PieceStore.reuse

    def spoil(store: PieceStore, *given: Any) -> int:
        copied = honest(store, *given)
        incomplete = next(n for n in range(store.layout.count) if not store.have >> n & 1)
        spans = {span.offset for span in store.spans(incomplete)}
        kept = next(n for n in range(16) if n * store.layout.piece_size // 16 not in spans)
        store.write(store.layout.start(incomplete) + kept * store.layout.piece_size // 16, b"spoiled")
        return copied

    monkeypatch.setattr(PieceStore, "reuse", spoil)
    figures = deliver_all(hosts, transfers)
    assert all(host.published.read_bytes() == release.content for host in hosts)
    assert not any(one["bad_pieces"] or one["bad_peers"] for one in figures)


def test_older_agents_are_asked_for_whole_pieces(
    release: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer 200 and the whole piece to a range, and close the connection that asks for blocks."""
    honest_ask, honest_get = Connection.ask, Peer.get

    async def ask_without_range(self: Connection, path: str, header: str, more: str = "") -> tuple[int, int | None]:
        return await honest_ask(self, path, header)

    async def get_without_blocks(self: Peer, connection: Connection, path: str) -> tuple[int, int | None]:
        return await honest_get(self, connection, "unknown" if path == "blocks" else path)

    monkeypatch.setattr(Connection, "ask", ask_without_range)
    monkeypatch.setattr(Peer, "get", get_without_blocks)
    hosts, transfers = fleet(new_host, release)
    hosts[0].published.write_bytes(release.content)
    with hosts[0].published.open("rb") as file:
        hosts[0].host.seed_existing(transfers["host-0"], file, hosts[0].pool)
    figures = hosts[1].deliver(transfers["host-1"])
    assert hosts[1].published.read_bytes() == release.content
    assert figures["reused_bytes"] > 0.9 * len(release.content)
    assert figures["bad_pieces"] == 0


def test_restarted_host_searches_its_old_file_again(release: CountingOrigin, new_host: NewHost) -> None:
    hosts, transfers = fleet(new_host, release)
    (hosts[0].home / "part").write_bytes(release.content[: 5 * MIB] + bytes(3 * MIB))
    figures = hosts[0].deliver(transfers["host-0"])
    assert hosts[0].published.read_bytes() == release.content
    # Pieces that are in the part file are not copied from the old file.
    assert figures["reused_bytes"] <= len(release.content) - 5 * MIB
    assert figures["origin_bytes"] <= 0.1 * len(release.content)
