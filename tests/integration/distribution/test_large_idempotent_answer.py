"""A batch submit with an Idempotency-Key whose answer is too large for one item of the table."""

from __future__ import annotations

import secrets

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud

LONGEST = 128


def test_repeat_of_1000_targets_with_long_ids_gets_the_same_answer(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    # An answer counts as one request for each 32 KiB.
    rate = {"quotas": {"requests_per_s": 10_000}}
    assert cloud.http("PATCH", f"/v1/projects/{fleet.project.id}", json=rate, key=cloud.admin_key).status == 200
    fleet.to_window_start()
    targets = [
        {"agent_id": secrets.token_hex(LONGEST // 2), "container_id": secrets.token_hex(LONGEST // 2)}
        for _ in range(1000)
    ]
    body = fleet.body(targets=targets, file_path="/" + "目" * 300)
    headers = {"idempotency-key": "once"}

    first = fleet.post("/v1/downloads/batch", body, headers=headers)
    again = fleet.post("/v1/downloads/batch", body, headers=headers)

    assert (first.status, again.status) == (202, 202), first.body[:300]
    assert len(first.body) > 400 * 1024
    assert again.json() == first.json()
    assert len(fleet.get("/v1/downloads", limit=100)["items"]) == 100
    assert len(fleet.tasks_of(first.json()["job_id"])) == 1000
