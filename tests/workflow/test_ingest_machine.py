"""The ingest state machine on moto: from a URL to a file, with admission and back-off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.ingest.running import Library
from tests.support.ingest.sources import FileSource, Hosted, file_source
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import idle_clock
from tidegate.ingest import download, fetch


@pytest.fixture
def source() -> Iterator[FileSource]:
    with file_source() as new_source:
        yield new_source


@pytest.fixture
def library(running_cloud: MotoCloud) -> Library:
    return Library(running_cloud, running_cloud.project())


def run_to_end(library: Library, request_id: str) -> dict[str, Any]:
    """Delivers messages, and moves the clock through back-offs, until the request has ended. Returns it."""
    until = idle_clock() + 40
    while idle_clock() < until:
        library.cloud.deliver("WakeupsQueue")
        library.cloud.deliver("AdmissionQueue")
        request = library.request(request_id)
        if request["status"] in ("completed", "failed", "cancelled"):
            return request
        if request["status"] == "pending":
            library.cloud.clock.advance(30)
        time.sleep(0.05)
    raise AssertionError(f"not over: {library.request(request_id)}")


def test_busy_source_is_retried_after_60_and_120_s(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(b"tide" * 1000, refusals=[(503, None), (429, None)])
    started = library.cloud.clock()

    accepted = library.ask(source.url("/a.bin"))
    ended = run_to_end(library, accepted["request_id"])

    assert (ended["status"], ended["attempts"]) == ("completed", 3)
    assert (library.cloud.clock() - started).total_seconds() >= 180
    assert library.file(accepted["file_id"])["state"] == "ready"


def test_step_that_dies_is_tried_again(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(b"tide" * 1000)
    deaths: list[int] = []

    def die_first(*args: Any) -> Any:
        if not deaths:
            deaths.append(1)
            raise MemoryError
        return fetch.fetch(*args)

    with patch.object(download, "fetch", die_first):
        done = run_to_end(library, library.ask(source.url("/a.bin"))["request_id"])

    assert (done["status"], done["attempts"]) == ("completed", 2)


def test_files_of_a_subscription_are_ingested_one_by_one(library: Library, source: FileSource) -> None:
    source.files["/list.json"] = Hosted(b'["/a", "/b", "/c"]', content_type="application/json")
    source.files |= {f"/{name}": Hosted(name.encode()) for name in "abc"}
    body = {"name": "s", "source_url": source.url("/list.json")}
    subscription = library.cloud.http("POST", "/v1/subscriptions", json=body, key=library.project.key).json()
    path = f"/v1/subscriptions/{subscription['subscription_id']}"
    scan = library.cloud.http("POST", f"{path}/download", key=library.project.key).json()
    assert run_to_end(library, scan["request_id"])["result"]["queued"] == 3

    tasks = library.cloud.http("GET", f"{path}/tasks", key=library.project.key).json()["items"]
    runs = sorted(
        (done["start_time"], done["finish_time"])
        for done in (run_to_end(library, task["request_id"]) for task in tasks)
    )

    assert len(runs) == 4
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(runs))
