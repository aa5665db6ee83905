"""Several hosts in one process with real sockets: all get the file, and S3 sends it about once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.swarm.lab import CountingOrigin, SwarmTransfers
from tests.unit.swarm.conftest import LabHost
from tidegate_client.download import Cancelled

NewHost = Callable[..., LabHost]


def test_six_hosts_get_the_file_that_s3_sends_about_once(origin: CountingOrigin, new_host: NewHost) -> None:
    """Patience is longer than the test, so a busy machine does not change which hosts go to S3."""
    hosts = [new_host(f"host-{n}") for n in range(6)]
    planned = SwarmTransfers.of(origin, changes={"patience": 120.0, "hold": 30.0})
    transfers = planned.make([host.placement for host in hosts])
    with ThreadPoolExecutor(6) as pool:
        figures = list(pool.map(lambda host: host.deliver(transfers[host.agent_id], patience=120.0), hosts))
    assert all(host.published.read_bytes() == origin.content for host in hosts)
    asked = Counter(first for first, last in origin.gets if last - first + 1 > len(origin.listed))
    pieces = -(-len(origin.content) // origin.piece_size)
    assert len(asked) == pieces
    # Rank 0 goes at once and the others wait for it: S3 sends only the lists more than once.
    assert asked.total() == pieces
    assert origin.egress < 1.05
    assert sum(one["peer_bytes"] for one in figures) == 5 * len(origin.content)
    assert sum(one["origin_bytes"] for one in figures) == origin.sent


def test_jumping_wall_clock_has_no_effect(
    origin: CountingOrigin, new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps by hours, in both directions, at every reading."""
    hosts = [new_host(f"host-{n}") for n in range(4)]
    transfers = SwarmTransfers.of(origin).make([host.placement for host in hosts])
    honest, calls = time.time, Counter[str]()

    def jumping() -> float:
        calls["time"] += 1
        return honest() + (7200.0 if calls["time"] % 2 else -7200.0)

    monkeypatch.setattr(time, "time", jumping)
    with ThreadPoolExecutor(4) as pool:
        figures = list(pool.map(lambda host: host.deliver(transfers[host.agent_id]), hosts))
    assert all(host.published.read_bytes() == origin.content for host in hosts)
    assert {one["fell_back"] for one in figures} <= {"none", "ladder"}


class StopAfter:
    """True once S3 was asked for this many more ranges."""

    def __init__(self, origin: CountingOrigin, ranges: int) -> None:
        self._origin, self._last = origin, len(origin.gets) + ranges

    def __bool__(self) -> bool:
        return len(self._origin.gets) >= self._last


def test_host_stopped_ten_times_ends_with_the_right_file(origin: CountingOrigin, new_host: NewHost) -> None:
    """Its neighbours never start, so everything comes from S3. Pieces on disk are not requested again."""
    others = [new_host(f"host-{n}") for n in range(1, 4)]
    size = origin.piece_size
    for life in range(11):
        host = new_host("host-0", download_rate=20e6)
        planned = SwarmTransfers.of(origin, changes={"hold": 0.01})
        transfer = planned.make([one.placement for one in (host, *others)])["host-0"]
        part = (host.home / "part").read_bytes() if (host.home / "part").exists() else b""
        starts = range(0, len(origin.content), size)
        here = {at for at in starts if part[at : at + size] == origin.content[at : at + size]}
        before = len(origin.gets)
        if life < 10:
            host.cancelled = StopAfter(origin, 3)  # type: ignore[assignment]
            with contextlib.suppress(Cancelled):
                host.deliver(transfer)
        else:
            host.deliver(transfer)
        host.close()
        asked = {first for first, last in origin.gets[before:] if last - first + 1 > len(origin.listed)}
        assert not asked & here
        if host.published.exists():
            break
    assert host.published.read_bytes() == origin.content
