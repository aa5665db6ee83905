"""Requests whose URLs have names that no name server answers: they hold a function of the API only for a moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.patience import idle_clock

# One look-up after another took 2 s each, so 8 to 22 s for these requests.
MOST_SECONDS = 5.0


def slow(number: int) -> str:
    return f"http://n{number}.tarpit.example/"


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/biz": {
        "name": "b",
        "process_url": slow(0),
        "before_create_url": slow(1),
        "before_run_url": slow(2),
        "process_stop_url": slow(3),
    },
    "/v1/task/multiple": {"name": "orders", "source_url": [slow(number) for number in range(6)]},
    "/v1/files": {
        "biz_id": 1,
        "app_id": 2,
        "file_path": "/in/a",
        "file_name": "a",
        "source_url": slow(0),
        "mirrors": [slow(number) for number in range(1, 11)],
    },
}


@pytest.fixture(autouse=True)
def tarpit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    over, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if str(host).endswith(".tarpit.example"):
            over.wait(30)
            raise socket.gaierror("no answer")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    over.set()


@pytest.mark.parametrize("path", REQUESTS)
def test_slow_names_of_a_request_share_one_second(cloud: MotoCloud, project: Project, path: str) -> None:
    began = idle_clock()
    answer = cloud.http("POST", path, json=REQUESTS[path], key=project.key)

    assert answer.status in {201, 202}, answer.body
    assert idle_clock() - began < MOST_SECONDS


def test_submits_with_slow_callback_names_are_hardly_held(cloud: MotoCloud) -> None:
    fleet, began = Fleet(cloud), idle_clock()
    for number in range(8):
        fleet.submit(f"host-{number}", callback=slow(number))

    assert idle_clock() - began < MOST_SECONDS


def test_callback_to_a_private_address_is_refused_at_submission(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    fleet.submit(callback=slow(0))
    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a", callback="http://169.254.169.254/x"))
    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")
