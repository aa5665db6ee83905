"""Every list: its last page, its cursors, its parameters. A list that is not seeded here fails the first test."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer, MotoCloud
from tidegate.aws.table import ItemPage, Table, put
from tidegate.distribution.model import job_key
from tidegate.notifications.deliveries import DeliveryStore, new_delivery
from tidegate.queue import retention
from tidegate.web.api import build_api

SOURCE = "https://source.invalid/x"
PATH = {"biz_id": 1, "app_id": 1, "file_path": "/a/b"}
REQUEST = {"type": "download", "payload": {"source_url": SOURCE, **PATH}}
OUTCOMES = [{"index": index, "state": "failed", "attempts": 1, "answer": {"result": "error"}} for index in range(2)]
UNPAGED = ["/v1/credentials", "/v1/stats", "/v1/queue/stats"]


def _list_routes() -> dict[str, set[str]]:
    """The parameters of each list but those of its pages."""
    api = build_api()
    api.include_all()
    routes = [route for route in [*api._static_routes, *api._dynamic_routes] if route.method == "GET"]
    parameters = {route.path: {field.alias for field in route.dependant.query_params} for route in routes}
    return {path: names - {"cursor", "limit"} for path, names in parameters.items() if "cursor" in names}


def name_in(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {"batch": {**body["batch"], "name": name}} if "batch" in body else {"name": name}


class World:
    """A project in which every list has exactly two entries, or three where a filter leaves one out."""

    def __init__(self, cloud: MotoCloud) -> None:
        self.cloud, self.project = cloud, cloud.project()
        self.key = cloud.make_key(self.project.id, ["read", "write", "admin"])
        self.headers = {"x-project-id": self.project.id}
        self.fleet = Fleet(cloud, self.project)

    def send(self, method: str, path: str, json: Any = None, **query: Any) -> Answer:
        # The project has the default rate of requests.
        self.cloud.clock.advance(2)
        path, _, inline = path.partition("?")
        query = dict(pair.split("=") for pair in inline.split("&") if inline) | query
        return self.cloud.http(method, path, json=json, query=query, key=self.key, headers=self.headers)

    def made(self, path: str, json: Any, field: str) -> list[str]:
        answers = [self.send("POST", path, {**json, **name_in(json, f"name-{number}")}) for number in range(2)]
        assert all(answer.status in (200, 201, 202) for answer in answers), answers
        return [answer.json()[field] for answer in answers]

    def with_runs(self, path: str, **fields: str) -> str:
        """Writes two entries into the partition that the list reads."""
        seen: list[str] = []

        class Looking(Table):
            def query(self, pk: str, **_: Any) -> ItemPage:
                seen.append(pk)
                return ItemPage([], None)

        table = self.cloud.app.table
        table.__class__ = Looking
        self.send("GET", path)
        table.__class__ = Table
        for moment in ("2026-11-01T00:00:00.000Z", "2026-11-02T00:00:00.000Z"):
            table.write(put({"pk": seen[-1], "sk": moment, "due": moment, **fields}))
        return path


def agents(world: World) -> str:
    for name in ("a-1", "a-2"):
        key = world.project.agent_key(name)
        assert world.cloud.http("GET", f"/v1/agents/{name}/transfers", key=key).status == 200
        assert world.send("PATCH", f"/v1/agents/{name}", {"groups": ["app"]}).status == 200
    return "/v1/agents"


def requests(world: World) -> str:
    for _ in range(2):
        body = REQUEST
        assert world.send("POST", "/v1/requests", body).status in (201, 202)
    return "/v1/queue?channel=no_cookie"


def request_log(world: World) -> str:
    request_id = world.send("POST", "/v1/requests", REQUEST).json()["request_id"]
    for event in ("started", "ended"):
        world.cloud.app.queue.log.write(world.project.id, request_id, 1, event)
    return f"/v1/requests/{request_id}/log"


def archive(world: World) -> str:
    requests(world)
    store = world.cloud.app.queue.store
    retention.archive(world.cloud.app.queue, store.list(world.project.id, 2, None).items)
    return f"/v1/archive?day={world.cloud.clock():%Y-%m-%d}"


def audit(world: World) -> str:
    world.made("/v1/biz", {"process_url": SOURCE}, "biz_id")
    return f"/v1/audit?actor={world.key.split('_')[1]}"


def businesses(world: World) -> str:
    world.made("/v1/biz", {"process_url": SOURCE}, "biz_id")
    return "/v1/biz"


def _batch(world: World) -> dict[str, Any]:
    biz_id = world.send("POST", "/v1/biz", {"name": "b", "process_url": SOURCE}).json()["biz_id"]
    return {"biz_id": biz_id, "name": "n", "total": 3, "rate": 1}


def batches(world: World) -> str:
    world.made("/v1/batches", _batch(world), "batch_id")
    return "/v1/batches?status=created"


def batch_items(world: World) -> str:
    (batch_id, _) = world.made("/v1/batches", _batch(world), "batch_id")
    return f"/v1/batches/{batch_id}/items?state=failed"


def batch_logs(world: World) -> str:
    (batch_id, _) = world.made("/v1/batches", _batch(world), "batch_id")
    assert (
        world.send("POST", f"/v1/batches/{batch_id}/logs", {"items": [{"message": "one"}, {"message": "two"}]}).status
        < 300
    )
    lines = [{"message": "of an item", "index": 5}, {"message": "of it, too", "index": 5}]
    assert world.send("POST", f"/v1/batches/{batch_id}/logs", {"items": lines}).status < 300
    return f"/v1/batches/{batch_id}/logs"


def batch_schedules(world: World) -> str:
    world.made("/v1/batch-schedules", {"batch": _batch(world), "schedule": "rate(1 hour)"}, "schedule_id")
    return "/v1/batch-schedules"


def batch_runs(world: World) -> str:
    (one, _) = world.made("/v1/batch-schedules", {"batch": _batch(world), "schedule": "rate(1 hour)"}, "schedule_id")
    return world.with_runs(f"/v1/batch-schedules/{one}/runs", state="skipped")


def _export_schedule() -> dict[str, Any]:
    return {"schedule": "rate(1 hour)", "source_url": SOURCE}


def export_schedules(world: World) -> str:
    world.made("/v1/export-schedules", _export_schedule(), "schedule_id")
    return "/v1/export-schedules"


def export_runs(world: World) -> str:
    (one, _) = world.made("/v1/export-schedules", _export_schedule(), "schedule_id")
    return world.with_runs(f"/v1/export-schedules/{one}/runs", state="skipped")


def callbacks(world: World) -> str:
    for number in range(2):
        message = {
            "project_id": world.project.id,
            "callback": SOURCE,
            "record_id": "req-1",
            "message_id": f"msg-{number}",
            "type": "task.completed",
        }
        delivery = new_delivery(message, "{}", world.cloud.clock())
        assert DeliveryStore(world.cloud.app.table).add(delivery, 0)
    return "/v1/callbacks?state=pending"


def subscriptions(world: World) -> str:
    world.made("/v1/subscriptions", {"source_url": SOURCE}, "subscription_id")
    return "/v1/subscriptions"


def subscription_tasks(world: World) -> str:
    (one, _) = world.made("/v1/subscriptions", {"source_url": SOURCE}, "subscription_id")
    for _ in range(2):
        assert world.send("POST", f"/v1/subscriptions/{one}/download").status in (200, 202)
    return f"/v1/subscriptions/{one}/tasks"


def subscription_runs(world: World) -> str:
    body = {"source_url": SOURCE, "schedule": "rate(1 hour)"}
    (one, _) = world.made("/v1/subscriptions", body, "subscription_id")
    return world.with_runs(f"/v1/subscriptions/{one}/runs", state="skipped")


def exports(world: World) -> str:
    labels = {"merchant_id": "m", "merchant_type": 1, "operator_id": "o"}
    world.made("/v1/task", {"source_data": [{"a": 1}], **labels}, "task_id")
    return "/v1/tasks?status=pending"


def tasks(world: World) -> str:
    world.fleet.to_window_start()
    made = world.fleet.submit_many(["a-1", "a-2"])
    return f"/v1/downloads?status=Pending&job_id={job_key(made['job_id'])}"


def jobs(world: World) -> str:
    for number in range(2):
        world.fleet.submit(file_path=f"/data/{number}")
    return "/v1/jobs?status=Pending"


def targets(world: World) -> str:
    world.fleet.to_window_start()
    made = world.fleet.submit_many(["a-1", "a-2"])
    world.fleet.collect()
    return f"/v1/jobs/{job_key(made['job_id'])}/targets?status=Pending"


def files(world: World) -> str:
    for _ in range(2):
        assert world.send("POST", "/v1/files", PATH).status == 201
    return "/v1/files?biz_id=1"


def projects(world: World) -> str:
    world.cloud.project()
    return "/v1/projects"


def project_keys(world: World) -> str:
    fresh = world.cloud.project()
    world.cloud.make_key(fresh.id, ["read"])
    return f"/v1/projects/{fresh.id}/keys"


def admin_keys(world: World) -> str:
    for _ in range(2):
        assert world.send("POST", "/v1/keys", {}).status == 201
    return "/v1/keys"


def releases(world: World) -> str:
    file = {"file_path": "/a", "signature": world.fleet.signature, "target_file_dir": "/srv", "target_user": "root"}
    for name in ("app", "web"):
        body = {"files": [file | {"target_file_dir": f"/srv/{name}"}], "targets": {"groups": [name]}}
        for note in ("first", "second"):
            assert world.send("PUT", f"/v1/releases/{name}", body | {"keep": 1 + len(note)}).status == 201
    return "/v1/releases"


def revisions(world: World) -> str:
    return releases(world) + "/app/revisions"


def release_hosts(world: World) -> str:
    agents(world)
    return releases(world) + "/app/hosts"


def drifted_hosts(world: World) -> str:
    path = release_hosts(world).removesuffix("hosts") + "drift"
    for name in ("a-1", "a-2"):
        report = {"name": "app", "revision": 2, "state": "drifted", "drift": ["/srv/app/a: removed"]}
        key = world.project.agent_key(name)
        body = {"releases": [report]}
        assert world.cloud.http("PUT", f"/v1/agents/{name}/releases", json=body, key=key).status == 200
    return path


def host_files(world: World) -> str:
    agents(world)
    releases(world)
    assert world.send("PATCH", "/v1/agents/a-1", {"groups": ["app", "web"]}).status == 200
    reports = [{"name": name, "revision": 2, "state": "current"} for name in ("app", "web")]
    key = world.project.agent_key("a-1")
    assert world.cloud.http("PUT", "/v1/agents/a-1/releases", json={"releases": reports}, key=key).status == 200
    return "/v1/agents/a-1/files"


SEEDS: dict[str, Callable[[World], str]] = {
    "/v1/agents": agents,
    "/v1/agents/<agent_id>/files": host_files,
    "/v1/queue": requests,
    "/v1/requests/<request_id>/log": request_log,
    "/v1/archive": archive,
    "/v1/audit": audit,
    "/v1/biz": businesses,
    "/v1/batches": batches,
    "/v1/batches/<batch_id>/items": batch_items,
    "/v1/batches/<batch_id>/logs": batch_logs,
    "/v1/batch-schedules": batch_schedules,
    "/v1/batch-schedules/<schedule_id>/runs": batch_runs,
    "/v1/export-schedules": export_schedules,
    "/v1/export-schedules/<schedule_id>/runs": export_runs,
    "/v1/callbacks": callbacks,
    "/v1/subscriptions": subscriptions,
    "/v1/subscriptions/<subscription_id>/tasks": subscription_tasks,
    "/v1/subscriptions/<subscription_id>/runs": subscription_runs,
    "/v1/tasks": exports,
    "/v1/downloads": tasks,
    "/v1/jobs": jobs,
    "/v1/jobs/<job>/targets": targets,
    "/v1/releases": releases,
    "/v1/releases/<name>/revisions": revisions,
    "/v1/releases/<name>/hosts": release_hosts,
    "/v1/releases/<name>/drift": drifted_hosts,
    "/v1/files": files,
    "/v1/projects": projects,
    "/v1/projects/<project_id>/keys": project_keys,
    "/v1/keys": admin_keys,
}


# The filters of each list, as written for one of its items: items of the same text are what the filter finds. A filter
# may lead to another index, where the list goes on by itself.
FILTERS: dict[str, list[str]] = {
    "/v1/agents": ["group={groups[0]}", "state={state}"],
    "/v1/queue": ["channel={channel}", "status={status}"],
    "/v1/batches": ["status={status}"],
    "/v1/batches/<batch_id>/items": ["state={state}"],
    "/v1/batches/<batch_id>/logs": ["index={index}"],
    "/v1/callbacks": ["state={callback_state}", "task_id={task_id}"],
    "/v1/tasks": [
        "status={status}",
        "name={name}",
        "merchant_id={merchant_id}",
        "merchant_type={merchant_type}",
        "operator_id={operator_id}",
    ],
    "/v1/downloads": ["job_id={job_id}", "status={status}"],
    "/v1/jobs": ["status={status}", "biz_id={biz_id}&app_id={app_id}&file_path={file_path}"],
    "/v1/jobs/<job>/targets": ["status={status}"],
    "/v1/files": ["biz_id={biz_id}", "app_id={app_id}", "biz_id={biz_id}&app_id={app_id}&file_path={file_path}"],
    "/v1/releases/<name>/hosts": ["state={state}"],
}
# Their filters have tests of their own: tests/integration/projects/test_audit.py and queue/test_archive_and_sweep.py.
FILTERED_ELSEWHERE = {"/v1/audit", "/v1/archive"}


@pytest.fixture(scope="module")
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


@pytest.fixture
def world(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tidegate.batches.items.Outcomes._lines", lambda *_: iter(OUTCOMES))
    return World(cloud)


def test_every_list_and_filter_is_tested_here() -> None:
    lists = _list_routes()
    assert set(SEEDS) == set(lists)
    filters = {path: {pair.split("=")[0] for one in FILTERS[path] for pair in one.split("&")} for path in FILTERS}
    assert filters == {path: names for path, names in lists.items() if names and path not in FILTERED_ELSEWHERE}


@pytest.mark.parametrize("route", SEEDS)
def test_exactly_full_last_page_has_no_cursor(world: World, route: str) -> None:
    path = SEEDS[route](world)
    whole = world.send("GET", path, limit=100).json()
    assert whole["next_cursor"] is None
    count = len(whole["items"])
    assert count >= 2

    assert world.send("GET", path, limit=count).json() == whole

    first = world.send("GET", path, limit=count - 1).json()
    rest = world.send("GET", path, limit=1, cursor=first["next_cursor"]).json()
    assert first["items"] + rest["items"] == whole["items"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("route", FILTERS)
def test_each_filter_pages_through_what_matches_it(world: World, route: str) -> None:
    path = SEEDS[route](world).partition("?")[0]
    if route == "/v1/jobs":
        world.fleet.submit(file_path="/data/0", target_file_dir="/opt/other")
    whole = world.send("GET", path, limit=100).json()["items"]
    for template in FILTERS[route]:
        written = [template.format_map(one) for one in whole]
        query = max(written, key=written.count)
        expected = [one for one, text in zip(whole, written, strict=True) if text == query]
        assert len(expected) > 1 or query.startswith("name="), f"a second page of {query}"
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while len(found) <= len(expected):
            page = world.send("GET", f"{path}?{query}", limit=1, **more).json()
            found += page["items"]
            if page["next_cursor"] is None:
                break
            more = {"cursor": page["next_cursor"]}
        assert found == expected, query


@pytest.mark.parametrize("route", [*SEEDS, *UNPAGED])
def test_unknown_parameter_of_a_list_is_refused_and_named(world: World, route: str) -> None:
    answer = world.send("GET", route.replace("<", "").replace(">", ""), staus="failed", project_id=world.project.id)
    assert answer.status == 422
    assert answer.json()["errors"] == [{"loc": ["query", "staus"], "msg": "unknown parameter"}]


def _cursor(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _crafted(cursor: str) -> Iterator[str]:
    """Cursors like this one, but with keys that DynamoDB refuses or that lead into another partition."""
    yield from (
        "x",
        "9" * 4000,
        "-1",
        "1.x",
        "0.-1",
        "\u00b2",
        "\ud800".encode("utf-8", "replace").decode(),
        _cursor([]),
    )
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        return
    for name in key:
        for value in ("\ud800", "", "\u0001", "\U0010ffff" * 300, "z" * 3000):
            yield _cursor({**key, name: {"S": value}})
        yield _cursor({**key, name: {"N": "1E999"}})
        yield _cursor({**key, name: {"N": "1"}})
        yield _cursor({**key, name: {"B": "AA=="}})
        yield _cursor({other: value for other, value in key.items() if other != name})
    yield _cursor({**key, "more": {"S": "x"}})
    for name in key:
        if name.endswith("pk"):
            yield _cursor({**key, name: {"S": str(key[name]["S"]).replace("prj-", "prj-0")}})


@pytest.mark.parametrize("route", SEEDS)
def test_crafted_cursor_is_422_or_an_ordinary_page(world: World, route: str) -> None:
    path = SEEDS[route](world)
    cursor = world.send("GET", path, limit=1).json()["next_cursor"]
    known = [str(item) for item in world.send("GET", path, limit=100).json()["items"]]
    for crafted in _crafted(cursor):
        answer = world.send("GET", path, limit=1, cursor=crafted)
        assert answer.status in (200, 422), (crafted, answer.body)
        if answer.status == 422:
            assert answer.json()["errors"][0]["loc"] == ["query", "cursor"]
        else:
            assert all(str(item) in known for item in answer.json()["items"])
