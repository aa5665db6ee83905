"""The AWS calls for the plan of a large Job."""

from __future__ import annotations

from tests.support.swarm.dispatch import PlannedJob
from tidegate.distribution.swarm import DEGREE


def test_plan_for_10000_hosts_takes_103_calls() -> None:
    planned = PlannedJob(10_000)
    # 100 presences per call, and one read each for the shards, the project and the content.
    assert planned.calls == {"BatchGetItem": 101, "GetItem": 2}
    assert planned.calls.total() / 10_000 <= 0.012
    terms = [planned.swarm.terms_of(agent) for agent in planned.agents[::50]]
    assert all(one is not None and 1 <= len(one["peers"]) <= DEGREE for one in terms)
    assert all(one is not None and one["members"] == 10_000 for one in terms)
