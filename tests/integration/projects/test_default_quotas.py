"""A new project's finite quotas, what happens when one is used up, and projects from before they had defaults."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.bench import calls
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.errors import Busy
from tidegate.projects.limits import EGRESS, RUNNER_SECONDS, TARGETS, DayBudget, UsageStore
from tidegate.projects.model import DEFAULTS, LEGACY
from tidegate.projects.projects import quotas_from
from tidegate.queue.admission import admit


def show(cloud: MotoCloud, project: Project) -> dict[str, Any]:
    return dict(cloud.http("GET", f"/v1/projects/{project.id}", key=cloud.admin_key).json())


def set_quotas(cloud: MotoCloud, project: Project, **quotas: int | None) -> dict[str, Any]:
    answer = cloud.http("PATCH", f"/v1/projects/{project.id}", json={"quotas": quotas}, key=cloud.admin_key)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def make_legacy(cloud: MotoCloud, project: Project) -> None:
    """As a version without default quotas stored it."""
    cloud.app.table.write(update(keys.project(project.id), removes=("has_default_quotas",)))


def use(cloud: MotoCloud, project: Project, **counts: int) -> None:
    cloud.app.projects.usage.add_today(project.id, cloud.clock(), **counts)


def dispatch(cloud: MotoCloud) -> tuple[Any, dict[str, Any]]:
    """Runs the open window's Job up to its dispatch. Returns the event of its steps and the last step's result."""
    from tests.bench.money import _execution_input

    cloud.deliver("TargetsQueue", limit=10_000)
    cloud.clock.advance(600)
    event = _execution_input(cloud)
    for step in ("close_window", "prepare_file"):
        cloud.invoke(step, event)
    return event, cloud.invoke("dispatch_transfer", event)


def test_new_project_has_finite_quotas_marked_as_defaults(cloud: MotoCloud, project: Project) -> None:
    shown = show(cloud, project)
    expected = {name: limit for name, limit in DEFAULTS.items() if name != "share"}
    assert {name: limit for name, limit in shown["quotas"].items() if limit is not None} == expected
    assert shown["defaults"] == dict.fromkeys(expected, True)


def test_set_quota_is_no_default_and_null_makes_it_one(cloud: MotoCloud, project: Project) -> None:
    assert "queued" not in set_quotas(cloud, project, queued=DEFAULTS["queued"])["defaults"]
    again = set_quotas(cloud, project, queued=None)
    assert (again["quotas"]["queued"], again["defaults"]["queued"]) == (DEFAULTS["queued"], True)


def test_project_from_before_keeps_no_limit_until_one_is_set(cloud: MotoCloud, project: Project) -> None:
    make_legacy(cloud, project)
    shown = show(cloud, project)
    assert [name for name in LEGACY if shown["quotas"].get(name) is not None] == []
    assert shown["defaults"].keys().isdisjoint(LEGACY)

    changed = set_quotas(cloud, project, queued=None)
    assert changed["quotas"]["queued"] == DEFAULTS["queued"]
    assert changed["quotas"].get("stored_bytes") is None


@pytest.mark.parametrize(
    ("count", "quota"),
    [(TARGETS, "targets_per_day"), (EGRESS, "egress_bytes_per_day"), (RUNNER_SECONDS, "runner_hours_per_day")],
)
def test_submit_over_a_quota_of_the_day_is_429_until_midnight(cloud: MotoCloud, count: str, quota: str) -> None:
    project = calls.with_file(cloud)
    set_quotas(cloud, project, **{quota: 1})
    use(cloud, project, **{count: 3600})

    answer = cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="a"), key=project.key)

    assert (answer.status, answer.json()["code"]) == (429, "quota_exceeded")
    assert quota in answer.json()["detail"]
    assert 0 < int(answer.headers["retry-after"]) <= 86400
    cloud.clock.advance(86400)
    assert cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="a"), key=project.key).status == 202


def test_egress_is_counted_once_though_dispatch_runs_twice(cloud: MotoCloud) -> None:
    project = calls.with_file(cloud)
    size = next(iter(cloud.http("GET", "/v1/files", key=project.key).json()["items"]))["size"]
    cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="a"), key=project.key)
    cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="b"), key=project.key)
    event, first = dispatch(cloud)
    assert first["state"] == "dispatched"
    cloud.invoke("dispatch_transfer", event)
    assert show(cloud, project)["usage"]["egress_bytes_per_day"] == 2 * size


def test_job_over_the_egress_quota_fails_with_that_code(cloud: MotoCloud) -> None:
    project = calls.with_file(cloud)
    cloud.http("POST", "/v1/downloads", json=calls.body(target_agent_id="a"), key=project.key)
    set_quotas(cloud, project, egress_bytes_per_day=0)
    event, refused = dispatch(cloud)
    assert (refused["state"], refused["error"]["Error"]) == ("refused", "QuotaExceeded")
    cloud.invoke("finish_job", {**event, "error": refused["error"]})
    (job,) = cloud.http("GET", "/v1/jobs", key=project.key).json()["items"]
    assert (job["status"], job["error"]["code"]) == ("Failed", "quota_exceeded")
    assert "egress_bytes_per_day" in job["error"]["detail"]
    assert show(cloud, project)["usage"]["egress_bytes_per_day"] == 0


def test_request_waits_while_the_runner_hours_are_used_up(cloud: MotoCloud, project: Project) -> None:
    set_quotas(cloud, project, runner_hours_per_day=1)
    use(cloud, project, **{RUNNER_SECONDS: 3600})
    request = cloud.app.queue.submit(project.id, "check", payload={"file_id": "f"})

    assert admit(cloud.app.queue, request.channel) == 0
    waiting = cloud.app.queue.get(project.id, request.request_id)
    assert (waiting.status, waiting.last_wait_reason) == ("queued", "runner_hours_per_day")

    cloud.clock.advance(86400)
    assert admit(cloud.app.queue, request.channel) == 1


def test_project_runs_no_more_at_once_than_its_quota(cloud: MotoCloud, project: Project) -> None:
    TestQueue(cloud, project).capacity(no_cookie=10)
    set_quotas(cloud, project, running=2)
    for number in range(4):
        cloud.app.queue.submit(project.id, "check", payload={"file_id": f"f{number}"}, channel="no_cookie")
        cloud.clock.advance(1)

    admit(cloud.app.queue, "no_cookie")

    found = cloud.app.queue.store.list(project.id, 10, None).items
    assert sorted(each.status for each in found) == ["queued", "queued", "running", "running"]


def test_start_counts_ten_seconds_in_the_transaction_that_starts_it(cloud: MotoCloud, project: Project) -> None:
    request = cloud.app.queue.submit(project.id, "check", payload={"file_id": "f"})
    admit(cloud.app.queue, request.channel)
    admit(cloud.app.queue, request.channel)
    assert cloud.app.projects.usage.today(project.id, cloud.clock())[RUNNER_SECONDS] == 10


def test_large_answer_counts_as_several_requests(cloud: MotoCloud, project: Project) -> None:
    limiter = cloud.app.projects.rate_limiter
    now = cloud.clock().timestamp()
    limiter.require(project.id, 1, now)
    limiter.charge(project.id, 5)
    from tidegate.errors import RateLimited

    with pytest.raises(RateLimited):
        limiter.require(project.id, 1, now + 5.5)
    limiter.require(project.id, 1, now + 6.5)


def test_flood_of_unknown_keys_is_refused_by_the_authorizer(cloud: MotoCloud, project: Project) -> None:
    stranger = {"headers": {"authorization": "Bearer tg_nobody_0"}}
    known = {"headers": {"authorization": f"Bearer {project.key}"}}
    cloud.clock.advance(3600)
    passed = [cloud.invoke("authorizer", stranger)["isAuthorized"] for _ in range(60)]
    assert passed == [True] * 50 + [False] * 10
    assert cloud.invoke("authorizer", known)["isAuthorized"] is True


def test_what_a_runner_reads_counts_as_its_time(cloud: MotoCloud, project: Project) -> None:
    """A batch whose results come separately reads them again at each tick."""
    app = cloud.app
    usage, now = UsageStore(app.table), cloud.clock()
    budget = DayBudget(usage, quotas_from({}), project.id, now)
    assert budget.reserve(runner_seconds=60, outgoing_calls=1)
    app.table.units_read += 2550

    budget.settle(runner_seconds=10, outgoing_calls=1)

    assert usage.today(project.id, now)["runner_seconds"] == 10 + 25


def test_targets_that_could_not_be_counted_are_counted_with_the_next(cloud: MotoCloud) -> None:
    """Their Tasks are stored then: the request is accepted, and its targets are sent the file."""
    project = calls.with_file(cloud)
    single = calls.body(target_agent_id="a")
    body = {name: value for name, value in single.items() if not name.startswith(("target_agent", "target_container"))}
    body["targets"] = [{"agent_id": f"a-{number}"} for number in range(600)]
    used = show(cloud, project)["usage"].get("targets_per_day") or 0
    with patch.object(UsageStore, "add_today", side_effect=Busy("DynamoDB does not answer")):
        answer = cloud.http("POST", "/v1/downloads/batch", json=body, key=project.key)
    assert answer.status == 202, answer.body

    assert cloud.http("POST", "/v1/downloads", json=single, key=project.key).status == 202
    assert show(cloud, project)["usage"]["targets_per_day"] == used + 601
