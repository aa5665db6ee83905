"""What the plan of a large Job costs in AWS calls."""

from __future__ import annotations

from tests.support.swarm.dispatch import PlannedJob
from tidegate.distribution.swarm.plan import DEGREE


def test_plan_for_ten_thousand_hosts_makes_a_hundredth_of_a_call_for_each() -> None:
    planned = PlannedJob(10_000)
    # 100 presences a call, one read of the shards, the project and the content each.
    assert planned.calls == {"BatchGetItem": 101, "GetItem": 2}
    assert planned.calls.total() / 10_000 <= 0.012
    places = [planned.swarm.terms_of(agent) for agent in planned.agents[::50]]
    assert all(place is not None and 1 <= len(place["peers"]) <= DEGREE for place in places)
    assert all(place is not None and place["members"] == 10_000 for place in places)
