"""A caller repeats a request, with its Idempotency-Key, whose function was killed."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine

from tests.support.fleet import Fleet
from tests.support.moto import cloud as moto_cloud
from tests.support.moto.cloud import MotoCloud

# The time-out on a busy local cloud; on AWS, it is 29 s.
_GROWN_TIMEOUT = 60


class _Killed(BaseException):
    pass


def test_key_of_killed_function_is_free_once_it_would_have_ended(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(cloud)
    monkeypatch.setattr(moto_cloud, "timeout_of", lambda _name: _GROWN_TIMEOUT)
    body, headers = fleet.body(target_agent_id="agent-1"), {"idempotency-key": "once"}

    def killed(*_args: object, **_kwargs: object) -> None:
        raise _Killed

    with time_machine.travel(cloud.clock(), tick=False) as now:
        with monkeypatch.context() as broken:
            broken.setattr("tidegate.distribution.submit.submit", killed)
            with pytest.raises(_Killed):
                fleet.post("/v1/downloads", body, headers=headers)
        at_once = fleet.post("/v1/downloads", body, headers=headers)
        now.shift(timedelta(seconds=31))
        # It may only have been slow. Two that ran side by side have made two records.
        meanwhile = fleet.post("/v1/downloads", body, headers=headers)
        now.shift(timedelta(seconds=30))
        later = fleet.post("/v1/downloads", body, headers=headers)

    for refused in (at_once, meanwhile):
        assert (refused.status, refused.json()["code"]) == (409, "idempotency_in_progress")
    assert later.status == 202, later.body
