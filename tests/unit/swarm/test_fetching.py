"""Real sockets, several hosts in one process: the file comes to all, and S3 sends it about once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.support.swarm.lab import CountingOrigin, Orders
from tests.unit.swarm.conftest import LabHost

NewHost = Callable[..., LabHost]


def test_six_hosts_get_the_file_and_the_store_sends_it_about_once(origin: CountingOrigin, new_host: NewHost) -> None:
    hosts = [new_host(f"host-{n}") for n in range(6)]
    transfers = Orders.of(origin).make([host.placement for host in hosts])
    with ThreadPoolExecutor(6) as pool:
        figures = list(pool.map(lambda host: host.deliver(transfers[host.agent_id]), hosts))
    assert all(host.published.read_bytes() == origin.content for host in hosts)
    # Usually 1.2; a busy machine is late with its news.
    assert origin.egress < 2.5
    assert sum(one["peer_bytes"] for one in figures) > 3 * len(origin.content)
    assert sum(one["origin_bytes"] for one in figures) == origin.sent
