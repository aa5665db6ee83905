"""A release on twenty real agents against the stack on MiniStack, and what it calls and costs, counted on moto."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.support.deployed import deployed_at
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tests.support.release_lab import lab, play
from tests.support.releases import ReleaseWorld
from tidegate.distribution.model import FleetAgent
from tidegate.releases.rollout import differs

SECTION = "Releases"
# Seconds of a window and the wait of an agent's poll, here, and a second for the rename and the hook.
_RECONNECTING = 10_000
# A comparison takes this long in a warm function, with all that a poll does besides. It is generous.
_POLL_MS = 50
# Hosts reconnect over this time: an agent waits up to a minute before it connects again.
_SPREAD_SECONDS = 60


def measure(quick: bool) -> Iterator[Figure]:
    yield from _counted()
    hosts = 5 if quick else 20
    with (
        tempfile.TemporaryDirectory() as home,
        deployed_at(Path(home) / "cloud") as cloud,
        lab(cloud, cloud.project(), Path(home), hosts) as world,
    ):
        took = play(world)
    for what, seconds in took.items():
        bar = 5.0 if what == "rollback" else None
        note = "without a byte from S3: the bucket was emptied before" if what == "rollback" else ""
        yield Figure(SECTION, f"{what}, {hosts} real agents", seconds, "s", bar, note=note)


def _counted() -> Iterator[Figure]:
    """What one host and revision calls, and how many functions 10,000 hosts that reconnect need at once."""
    with MotoCloud() as cloud:
        world = ReleaseWorld(Fleet(cloud))
        hosts = world.add_hosts(*[f"h-{number}" for number in range(20)])
        for content in (b"one", b"two"):
            world.put(signature=world.fleet.store(content))
            before = sum(host.calls for host in hosts)
            world.round(*hosts)
        calls = (sum(host.calls for host in hosts) - before) / len(hosts)
        yield Figure(SECTION, "calls of a host for a revision", calls, "calls", 5)
        yield Figure(SECTION, "AWS calls to compare 10,000 hosts", _compared(cloud, world), "calls")
    functions = _RECONNECTING / _SPREAD_SECONDS * _POLL_MS / 1000
    yield Figure(
        SECTION,
        "functions at once for 10,000 hosts that reconnect",
        functions,
        "",
        50,
        note=f"within {_SPREAD_SECONDS} s, {_POLL_MS} ms each",
    )


def _compared(cloud: MotoCloud, world: ReleaseWorld) -> int:
    """Calls that the comparison adds to the hosts' polls, in one warm function."""
    made: list[str] = []
    r = cloud.app.releases
    query = r.store._table.query_all
    r.remembered.clear()

    def counted(*args: object, **more: object) -> object:
        made.append("Query")
        return query(*args, **more)  # type: ignore[arg-type]

    r.store._table.query_all = counted  # type: ignore[method-assign, assignment]
    for number in range(_RECONNECTING):
        agent = FleetAgent(world.fleet.project.id, f"h-{number}", groups=("web",))
        differs(r, world.fleet.project.id, agent, "")
    r.store._table.query_all = query  # type: ignore[method-assign]
    return len(made)
