"""Prepares fuzzing of the deployed API: a project with records of each kind, and test cases close to valid ones.

A case with every field wrong only tests the first check. So ids mostly exist, and bodies are mostly valid with some
fields replaced by values from schemathesis.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from zlib import crc32

from hypothesis import strategies as st
from schemathesis import Case as AnyCase
from schemathesis import GenerationMode

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.fuzz import odd_values

Case = AnyCase[Any]
AGENT = "host-1"
MOSTLY = st.sampled_from([True, True, True, False])
RARELY = st.sampled_from([False] * 7 + [True])
# Schemathesis cannot read half a surrogate pair; tests/integration/web/test_any_odd_value.py sends those.
ODD_VALUES = odd_values.values.filter(lambda value: not re.search(r"\\ud[89a-f]", json.dumps(value)))
# A URL is sent as UTF-8, so it cannot contain half a surrogate pair.
ODD_TEXTS = (odd_values.digits | odd_values.moments | odd_values.texts).filter(lambda text: text.isprintable() and text)
ODD_IDS = ODD_TEXTS.map(lambda text: quote(text[:3000], safe=""))
NASTY_URLS = (
    "http://[",
    "http://a..b/",
    f"http://{'a' * 70}.example/",
    "http://x:99999/",
    "ftp://x/",
    "http://10.0.0.1/",
)
URLS = st.sampled_from(NASTY_URLS) | st.text(max_size=60).map("http://{}".format) | st.text(max_size=60)
CONTENT = b"fuzzed"
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()
PARCEL = {
    "biz_id": 2,
    "app_id": 3,
    "file_path": "/fuzz/a",
    "file_name": "a",
    "target_user": "root",
    "target_file_dir": "/srv",
    "file_signature": SIGNATURE,
}
SOURCE = "https://source.invalid/list"
TABLE = {"name": "fuzz", "source_data": [{"a": 1, "b": "x"}]}
SEVERAL = {"name": "fuzz", "source_data": [[{"a": 1}], [{"b": 2}]], "template": [{"a": "甲"}, None]}


@dataclass(frozen=True)
class World:
    """Existing records: `ids` by the name of a parameter, and valid `bodies` by operation."""

    admin_key: str
    key: str
    ids: dict[str, list[Any]]
    bodies: dict[str, dict[str, Any]]

    def key_for(self, operation: str) -> str:
        """Returns the admin key for admin routes, and the project's key for all others."""
        admin = ("/v1/projects", "/v1/keys", "/v1/cleanup", "/v1/queue/", "/v1/compensation/trigger")
        return self.admin_key if operation.partition(" ")[2].startswith(admin) else self.key

    def near(self, operation: str, name: str) -> list[Any]:
        """Returns the ids to try for an operation.

        Each operation gets different records, so that one that deletes or ends its own leaves the others intact.
        """
        known = self.ids[name]
        first = crc32(operation.encode()) % len(known)
        return [known[first], known[first - 1]] if len(known) > 2 else known


def world(cloud: Deployed) -> World:
    project = cloud.project(allow_private_urls=False)
    spare = cloud.project()
    key = cloud.make_key(project.id, ["read", "write", "agent"], AGENT)["key"]
    ids: dict[str, list[Any]] = {"agent_id": [AGENT], "name": ["cookies"], "project_id": [spare.id]}
    ids["key_id"] = [cloud.make_key(spare.id, ["read"])["key_id"] for _ in range(2)]
    ids["file_id"] = [
        cloud.store(project, "/fuzz/a", CONTENT, SIGNATURE),
        _post(project, "/v1/files", _FILE)["file_id"],
    ]
    _records(cloud, project, ids)
    ids["cursor"] = _cursors(project)
    prepared = World(cloud.admin_key, key, ids, _bodies(ids))
    for request_id in prepared.near("POST /v1/requests/{request_id}/resume", "request_id"):
        _post(project, f"/v1/requests/{request_id}/pause")
    for batch_id in prepared.near("POST /v1/batches/{batch_id}/stop", "batch_id"):
        _post(project, f"/v1/batches/{batch_id}/start")
    return prepared


_FILE = {"biz_id": 2, "app_id": 3, "file_path": "/fuzz/b"}


def _post(project: DeployedProject, path: str, body: Any = None, key: str | None = None) -> Any:
    answer = project.cloud.http("POST", path, json=body, key=key or project.key)
    assert answer.status < 300, answer.body
    return answer.json() if answer.body else None


def _records(cloud: Deployed, project: DeployedProject, ids: dict[str, list[Any]]) -> None:
    # This channel admits nothing, so that its requests can be cancelled, paused and moved.
    _post(project, "/v1/queue/capacity", {"held": 0}, cloud.admin_key)
    check = {"type": "check", "payload": {"file_id": ids["file_id"][0]}}
    ids["request_id"] = [_post(project, "/v1/requests", check | {"channel": "held"})["request_id"] for _ in range(12)]
    source = {"name": "s", "source_url": SOURCE}
    ids["subscription_id"] = [_post(project, "/v1/subscriptions", source)["subscription_id"] for _ in range(8)]
    business = {"name": "b", "process_url": SOURCE}
    ids["biz_id"] = [_post(project, "/v1/biz", business)["biz_id"]]
    batch = {"biz_id": ids["biz_id"][0], "name": "n", "total": 3, "rate": 1}
    ids["batch_id"] = [_post(project, "/v1/batches", batch)["batch_id"] for _ in range(12)]
    ids["task_id"] = [_post(project, "/v1/task", TABLE | {"callback": SOURCE})["task_id"] for _ in range(3)]
    submitted = _post(project, "/v1/downloads", PARCEL | {"target_agent_id": AGENT})
    ids["task"] = [quote(submitted["task_id"], safe=""), submitted["task_id"].rpartition(":")[2]]
    ids["job"], ids["job_id"] = [quote(submitted["job_id"], safe="")], [submitted["job_id"]]

    def deliveries() -> Any:
        return project.http("GET", "/v1/callbacks").json()["items"]

    ids["delivery_id"] = [item["delivery_id"] for item in until(deliveries, bool)]
    ids["record"] = [ids["task_id"][0], ids["request_id"][0]]


def _cursors(project: DeployedProject) -> list[str]:
    lists = ("/v1/tasks", "/v1/batches", "/v1/queue", "/v1/subscriptions", "/v1/audit")
    return [project.http("GET", path, query={"limit": 1}).json()["next_cursor"] for path in lists]


def _bodies(ids: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    business, file = ids["biz_id"][0], ids["file_id"][0]
    return {
        "POST /v1/files": {**_FILE, "file_name": "b", "size": 6, "signature": SIGNATURE},
        "POST /v1/downloads": PARCEL | {"target_agent_id": AGENT, "target_container_id": "c"},
        "POST /v1/downloads/batch": PARCEL | {"targets": [{"agent_id": AGENT}, {"agent_id": "host-2"}]},
        "POST /v1/task": TABLE,
        "POST /v1/task/multiple": SEVERAL,
        "POST /v1/download/sync": TABLE,
        "POST /v1/download/sync/multiple": SEVERAL,
        "GET /v1/download/sync": TABLE | {"source_data": json.dumps(TABLE["source_data"])},
        "GET /v1/download/sync/multiple": {name: json.dumps(SEVERAL[name]) for name in ("source_data", "template")},
        "POST /v1/tasks/delete": {"task_ids": ids["task_id"][:1]},
        "POST /v1/biz": {"name": "b", "process_url": SOURCE},
        "PUT /v1/biz/{biz_id}": {"name": "b", "process_url": SOURCE},
        "POST /v1/batches": {"biz_id": business, "name": "n", "total": 3, "rate": 1},
        "POST /v1/batches/{batch_id}/logs": {"items": [{"message": "m", "index": 1}]},
        "POST /v1/requests": {"type": "check", "payload": {"file_id": file}, "channel": "held"},
        "POST /v1/subscriptions": {"name": "s", "source_url": SOURCE, "schedule": "rate(1 hour)"},
        "PUT /v1/credentials/{name}": {"headers": {"Cookie": "a=b"}, "origins": ["https://x.example"]},
        "POST /v1/projects/{project_id}/keys": {"scopes": ["read"]},
        "POST /v1/queue/capacity": {"held": 0},
        "POST /v1/queue/pause": {"scope": "held"},
        "POST /v1/queue/resume": {"scope": "held"},
        "POST /v1/agents/{agent_id}/results": {"items": [{"transfer_id": "t", "error_code": 0}]},
    }


@st.composite
def cases(draw: st.DrawFn, operation: Any, mode: GenerationMode, world: World) -> Case:
    case: Case = draw(operation.as_strategy(generation_mode=mode))
    good = world.bodies.get(operation.label)
    if good and draw(MOSTLY):
        if operation.method == "get":
            case.query = _mixed(draw, good, case.query)
        elif isinstance(case.body, dict):
            case.body = _mixed(draw, good, case.body)
    known = [(case.path_parameters, set(world.ids)), (case.query, {"task_id", "job_id", "record", "cursor"})]
    for given, names in known:
        for name in sorted(names & set(given)):
            if draw(MOSTLY):
                given[name] = draw(st.sampled_from(world.near(operation.label, name)))
    for given, odd in ((case.path_parameters, ODD_IDS), (case.query, ODD_TEXTS)):
        for name in sorted(given):
            if draw(RARELY):
                given[name] = draw(odd)
    # Without this, a long poll would wait for the full time.
    if str(case.query.get("wait")).isdigit():
        case.query["wait"] = 0
    return case


def _mixed(draw: st.DrawFn, good: dict[str, Any], generated: dict[str, Any]) -> dict[str, Any]:
    replaced = draw(st.sets(st.sampled_from(sorted(generated)), max_size=2)) if generated else set()
    mixed = good | {name: draw(URLS) if _is_url(name) and draw(MOSTLY) else generated[name] for name in replaced}
    return mixed | {name: draw(ODD_VALUES) for name in sorted(mixed) if draw(RARELY)}


def _is_url(name: str) -> bool:
    return name == "callback" or name.endswith("url")
