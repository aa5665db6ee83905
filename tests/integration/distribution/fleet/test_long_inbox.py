"""A host that was offline for long: its inbox is full of expired entries."""

from __future__ import annotations

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.distribution.inbox import InboxEntry, transfer_token
from tidegate.distribution.model import Target

EXPIRED = 2400


@pytest.fixture
def fleet(cloud: MotoCloud) -> Fleet:
    new_fleet = Fleet(cloud)
    new_fleet.to_window_start()
    return new_fleet


def test_new_transfer_is_offered_behind_2400_expired_ones(fleet: Fleet) -> None:
    _add_expired(fleet, EXPIRED)
    fleet.run_until_dispatched(fleet.submit("a-1")["job_id"])

    assert [entry["job_id"] is not None for entry in fleet.inbox("a-1")] == [True]


def test_expired_entries_are_removed_from_the_inbox(fleet: Fleet) -> None:
    _add_expired(fleet, 60)
    assert fleet.inbox("a-1") == []
    assert fleet.inbox("a-1") == []

    assert list(fleet.cloud.app.distribution.inbox.inbox(fleet.project.id, "a-1")) == []


def _add_expired(fleet: Fleet, count: int) -> None:
    """Adds expired entries with long file names, so that they fill more than one page."""
    until = fleet.cloud.clock().timestamp() - 1
    entries = [
        InboxEntry(
            project_id=fleet.project.id,
            transfer_id=transfer_token(f"{number:032x}", 0, 1),
            target=Target("a-1"),
            file_name="f" * 200,
            target_file_dir="/" + "d" * 300,
            target_user="root",
            signature=fleet.signature,
            size=1,
            until=until,
            job_id=f"job-{number}",
            sequence=number + 1,
        )
        for number in range(count)
    ]
    fleet.cloud.app.distribution.inbox.add(entries)
