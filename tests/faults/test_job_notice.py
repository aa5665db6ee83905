"""The notice of a Job's end is in the outbox if its publisher dies."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.notifications.notices import Notifier


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def test_end_of_a_job_is_in_the_outbox_when_its_publisher_dies(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    with patch.object(Notifier, "publish", side_effect=RuntimeError("died")), pytest.raises(RuntimeError):
        fleet.step("finish_job", job_id)

    assert fleet.job(job_id)["status"] == "Success"
    table = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    (notice,) = [item for item in table if "#NOTICE#" in item["pk"]["S"]]
    assert notice["record_id"] == {"S": job_id}
    assert "due_at" in notice, "compensation would not find it"
