"""A release on twenty real agents against the stack on MiniStack; on moto, 500 simulated hosts, and what it calls."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.bench import fleet, prices
from tests.bench.figures import Figure, few
from tests.bench.meter import metered
from tests.support.deployed import Deployed
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tests.support.release_lab import Lab, lab, play
from tests.support.releases import Host, ReleaseWorld
from tidegate.distribution.model import FleetAgent
from tidegate.releases.model import goals_digest
from tidegate.releases.rollout import differs

SECTION = "Releases"
_RECONNECTING = 10_000
# Hosts reconnect over this time: an agent waits up to a minute before it connects again.
_SPREAD_SECONDS = 60


def live(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    hosts = 5 if quick else 20
    with tempfile.TemporaryDirectory() as home, lab(cloud, cloud.project(), Path(home), hosts) as world:
        yield from figures_of(play(world), hosts)
        yield Figure(SECTION, "calls of a real agent for a revision", world.calls_a_host, "", 5)
        yield from reconnecting(world)


def figures_of(took: Mapping[str, float], hosts: int) -> Iterator[Figure]:
    for what, seconds in took.items():
        bar = 5.0 if what == "rollback" else None
        note = "without a byte from S3: the bucket was emptied before" if what == "rollback" else ""
        yield Figure(SECTION, f"{what}, {hosts} real agents", seconds, "s", bar, note=note)


def measure(quick: bool) -> Iterator[Figure]:
    yield from _counted()
    yield from _simulated(few(100 if quick else 500, 20))


def _counted() -> Iterator[Figure]:
    """What one host calls for a revision, and what the comparison of 10,000 hosts calls."""
    with MotoCloud() as cloud:
        world = ReleaseWorld(Fleet(cloud))
        hosts = world.add_hosts(*[f"h-{number}" for number in range(few(20, 2))])
        for content in (b"one", b"two"):
            world.put(signature=world.fleet.store(content))
            before = sum(host.calls for host in hosts)
            world.round(*hosts)
        calls = (sum(host.calls for host in hosts) - before) / len(hosts)
        yield Figure(SECTION, "calls of a host for a revision", calls, "calls", 5)
        yield Figure(SECTION, "AWS calls to compare 10,000 hosts", _compared(cloud, world), "calls")
        yield _idle_month(cloud, world, hosts[0])


def _idle_month(cloud: MotoCloud, world: ReleaseWorld, host: Host) -> Figure:
    """A connected host's month, with what a poll adds for its release in a function that knows no releases yet."""
    path, reads = f"/v1/agents/{host.name}/transfers", []
    for told in ({}, {"X-Tidegate-Goals": goals_digest((name, *goal) for name, goal in host.goals.items())}):
        cloud.app.releases.remembered.clear()
        with metered(cloud) as poll:
            answer = cloud.http("GET", path, key=host.key, headers={"X-Tidegate-Can": "stage,release", **told})
        assert answer.json().get("releases") is None
        reads.append(poll.used["DYNAMODB_READ"])
    idle, *_ = fleet.idle_month()
    more = fleet.polls_of_a_month() * (reads[1] - reads[0]) * prices.DYNAMODB_READ
    note = f"{reads[1] - reads[0]:.1f} read units a poll, {more:.5f} $; without a release {idle.value:.4f} $"
    return Figure(SECTION, "a connected host's idle month with a release", idle.value + more, "$", 0.02, note=note)


def reconnecting(world: Lab) -> Iterator[Figure]:
    """How many functions 10,000 hosts that reconnect need at once, from the time of a poll over HTTP."""
    took: list[float] = []
    for name in world.names * 2:
        began = time.perf_counter()
        world.poll(name)
        took.append(time.perf_counter() - began)
    poll = statistics.median(took)
    yield Figure(SECTION, "poll of a host, warm, with the emulator's own time", poll * 1000, "ms", note="median")
    name, note = "functions at once for 10,000 hosts that reconnect", f"within {_SPREAD_SECONDS} s"
    yield Figure(SECTION, name, _RECONNECTING / _SPREAD_SECONDS * poll, "", 50, note=note)


def _simulated(count: int) -> Iterator[Figure]:
    """30 % of the hosts are down at the first revision, ten are new after it, and the second is bad on every hundredth.
    In the end every host has the first content."""
    with MotoCloud() as cloud:
        world = ReleaseWorld(Fleet(cloud))
        path, quota = f"/v1/projects/{world.fleet.project.id}", {"quotas": {"requests_per_s": 1000}}
        assert cloud.http("PATCH", path, key=cloud.admin_key, json=quota).status == 200
        hosts: list[Host] = []
        for number in range(count):
            hosts += world.add_hosts(f"h-{number:03d}")
            # The clock stands still between calls, and the quota is one of a second.
            cloud.clock.advance(0.1)
        chance = random.Random(35)
        chance.shuffle(hosts)
        down, up = hosts[: count * 3 // 10], hosts[count * 3 // 10 :]
        world.put()
        good = world.fleet.signature
        yield Figure(SECTION, f"windows for {len(up)} simulated hosts that are up", _windows(world, up, good), "", 1)
        yield Figure(SECTION, f"windows for {len(down)} that return", _windows(world, down, good), "", 1)
        new = world.add_hosts(*[f"new-{number}" for number in range(10)])
        yield Figure(SECTION, "windows for 10 that are new", _windows(world, new, good), "", 1)
        everybody = [*hosts, *new]
        bad = world.fleet.store(b"bad")
        for host in chance.sample(everybody, max(1, len(everybody) // 100)):
            host.bad.add(bad)
        world.put(signature=bad, waves=[{"percent": 10, "max_failed_percent": 0}, {"percent": 50}])
        looks = 0
        while world.show()["status"] != "rolled_back":
            world.round(*everybody)
            looks += 1
            assert looks < 20, world.show()
        world.round(*everybody)
        wrong = [host.name for host in everybody if host.content["app"] != good]
        yield Figure(SECTION, "hosts with a revision that is bad on 1 %, in the end", len(wrong), "", 0)
        had = sum(bad in host.kept for host in everybody)
        yield Figure(SECTION, f"hosts of {len(everybody)} that had fetched it", had, "")


def _windows(world: ReleaseWorld, hosts: list[Host], wanted: str) -> int:
    """Windows until all these hosts have the content."""
    windows = 0
    while any(host.content.get("app") != wanted for host in hosts):
        world.round(*hosts)
        windows += 1
        assert windows < 5, windows
    return windows


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
    for number in range(few(_RECONNECTING)):
        agent = FleetAgent(world.fleet.project.id, f"h-{number}", groups=("web",))
        differs(r, world.fleet.project.id, agent, "")
    r.store._table.query_all = query  # type: ignore[method-assign]
    return len(made)
