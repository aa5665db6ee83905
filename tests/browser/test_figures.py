"""Live figures: the waves, bytes and speed of a Job, and the rate of a batch."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.batches.receiver import receiver
from tests.support.console import Console
from tests.support.deployed import Deployed, DeployedProject, until

CONTENT = b"tide" * 1000
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()
MEGABYTE = 1024 * 1024
# Seconds that a step of a Job may take on a busy machine.
PATIENCE = 180


class Host:
    """An agent that reports its transfers as the test says."""

    def __init__(self, project: DeployedProject, name: str) -> None:
        self.name = name
        self._cloud = project.cloud
        self._key = project.agent_key(name)

    def offered(self) -> list[dict[str, Any]]:
        answer = self._cloud.http("GET", f"/v1/agents/{self.name}/transfers", key=self._key)
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def report(self, code: int = 0, **figures: Any) -> None:
        items = [
            {"transfer_id": item["transfer_id"], "container_id": "", "error_code": code, **figures}
            for item in self.offered()
        ]
        assert items, f"{self.name} is offered nothing"
        answer = self._cloud.http("POST", f"/v1/agents/{self.name}/results", json={"items": items}, key=self._key)
        assert answer.status == 200, answer.body


def job_of(project: DeployedProject, hosts: list[Host], **more: Any) -> str:
    """The URL of a Job's page."""
    project.cloud.store(project, "/figures/app.bin", CONTENT, SIGNATURE)
    body = {
        "biz_id": 2,
        "app_id": 3,
        "file_path": "/figures/app.bin",
        "file_name": "app.bin",
        "file_signature": SIGNATURE,
        "target_user": "root",
        "target_file_dir": "/srv",
        "targets": [{"agent_id": host.name} for host in hosts],
        **more,
    }
    made = project.http("POST", "/v1/downloads/batch", json=body)
    assert made.status == 202, made.body
    return f"distribution/{made.json()['job_id'].replace('/', '%2F')}"


def waiting(hosts: list[Host]) -> list[Host]:
    return [host for host in hosts if host.offered()]


def heights(chart: Locator) -> set[str]:
    """The distinct heights of a chart's line."""
    drawn = chart.locator("path.line").get_attribute("d") or ""
    return {point.split()[1] for point in re.split("[ML]", drawn) if point}


def test_waves_advance_as_hosts_report(desk: Console, project: DeployedProject) -> None:
    hosts = [Host(project, f"wave-{number}") for number in range(4)]
    desk.go(job_of(project, hosts, waves=[{"percent": 50, "max_failed_percent": 10}, {"percent": 100}]))
    waves = desk.page.locator("[data-key=waves] .wave")
    expect(waves).to_have_count(2)
    first = until(lambda: waiting(hosts), lambda found: len(found) == 2, seconds=PATIENCE)
    expect(waves.nth(0)).to_contain_text(re.compile("50%.*Running.*2 targets.*10%"))
    expect(waves.nth(1)).to_contain_text(re.compile("100%.*Pending"))

    for host in first:
        host.report(0)

    second = until(lambda: waiting(hosts), lambda found: len(found) == 2, seconds=PATIENCE)
    assert not {host.name for host in first} & {host.name for host in second}
    expect(waves.nth(0)).to_contain_text("Success")
    expect(waves.nth(1)).to_contain_text("Running")
    for host in second:
        host.report(0)
    expect(desk.page.locator(".page-head .badge")).to_have_text("Success")
    expect(waves.nth(1)).to_contain_text("Success")


def test_job_shows_bytes_by_source_and_speed(desk: Console, project: DeployedProject) -> None:
    hosts = [Host(project, f"peer-{number}") for number in range(3)]
    desk.go(job_of(project, hosts))
    until(lambda: waiting(hosts), lambda found: len(found) == 3, seconds=PATIENCE)
    expect(desk.page.locator(".page-head .badge")).to_have_text("Running")
    expect(desk.page.locator("[data-key=bytes]")).to_have_count(0)
    moved = {"size": 4 * MEGABYTE, "speed": 2 * MEGABYTE}
    hosts[0].report(0, **moved, swarm={"origin_bytes": 4 * MEGABYTE, "peer_bytes": 0})
    progress, sources = desk.page.locator("[data-key=progress]"), desk.page.locator("[data-key=bytes]")
    expect(sources).to_contain_text(re.compile("From S3 ?4.0 MB · 100%"))
    expect(progress.locator(".figures")).to_contain_text("2.0 MB/s")

    hosts[1].report(0, **moved, swarm={"origin_bytes": 0, "peer_bytes": 4 * MEGABYTE, "bad_pieces": 1})

    expect(sources).to_contain_text(re.compile("From other hosts ?4.0 MB · 50%"))
    expect(sources).to_contain_text("Bad pieces")
    expect(progress.locator(".figures")).to_contain_text("8.0 MB")
    chart = progress.locator("svg.chart")
    expect(chart).to_have_attribute("aria-label", re.compile("^Speed: .*/s$"))
    # The second host's bytes are a peak in the chart.
    until(lambda: heights(chart), lambda found: len(found) > 1, seconds=PATIENCE)
    hosts[2].report(2, error_msg="no space left")
    expect(desk.page.locator(".page-head .badge")).to_have_text("Failed")


def test_running_batch_charts_its_rate_against_the_goal(
    desk: Console, project: DeployedProject, deployed: Deployed
) -> None:
    with receiver() as business:
        made = project.http("POST", "/v1/biz", json={"name": "Ledger", "process_url": business.url})
        wanted = {"biz_id": made.json()["biz_id"], "name": "Paced", "total": 100_000, "rate": 20}
        batch = project.http("POST", "/v1/batches", json=wanted).json()["batch_id"]
        assert project.http("POST", f"/v1/batches/{batch}/start").status == 202
        desk.go(f"batches/{batch}")
        chart = desk.page.locator("[data-key=progress] svg.chart")

        expect(chart).to_have_attribute("aria-label", re.compile(r"^Now: \d+(\.\d+)?/s$"))
        expect(chart.locator("line.goal")).to_have_count(1)
        # The rate starts at zero, so the line rises.
        until(lambda: heights(chart), lambda found: len(found) > 1, seconds=PATIENCE)
        assert project.http("POST", f"/v1/batches/{batch}/stop").status == 202
        expect(desk.page.locator(".page-head .badge")).to_have_text("Stopped")


@pytest.mark.parametrize(("seconds", "shown"), [(59.8, "1 min 0 s"), (119.7, "2 min 0 s"), (3599.6, "1 h 0 min")])
def test_duration_is_rounded_before_it_is_split(desk: Console, seconds: float, shown: str) -> None:
    def answer(route: Route) -> None:
        fetched = route.fetch()
        overview = fetched.json()
        overview["compensation"]["interval_s"] = seconds
        route.fulfill(response=fetched, json=overview)

    desk.page.route("**/v1/overview", answer)
    desk.go("overview")
    expect(desk.page.locator("[data-key=compensation]")).to_contain_text(f"Interval{shown}")
    desk.page.unroute_all(behavior="ignoreErrors")
