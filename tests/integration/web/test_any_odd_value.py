"""Whatever a path, a query or a body contains, the answer is not 5xx."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.integration.notifications.watching import Line
from tests.support import sample
from tests.support.fuzz import odd_values
from tests.support.fuzz.any_values import examples
from tests.support.moto import aws_limits
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.web.api import build_api
from tidegate.web.openapi import contract

CONTRACT = contract(build_api())
OPERATIONS = [(method.upper(), path) for path, methods in CONTRACT["paths"].items() for method in methods]
# Reads first: they are slower after the writes.
CLOSED = sorted((method, path) for method, path in OPERATIONS if path.startswith("/v1/"))
FILE = {"biz_id": 1, "app_id": 1, "file_path": "/a/b"}
SIGNATURE = "a" * 64
SOURCE = "https://source.invalid/x"
GOOD: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/files"): FILE,
    ("POST", "/v1/requests"): {"type": "download", "payload": {"source_url": SOURCE, **FILE}},
    ("POST", "/v1/batches"): {"biz_id": "biz-1", "name": "n", "rate": 1, "total": 3},
    ("POST", "/v1/biz"): {"name": "b", "process_url": SOURCE},
    ("POST", "/v1/subscriptions"): {"name": "s", "source_url": SOURCE},
    ("POST", "/v1/task"): {"name": "t1", "source_data": [{"a": 1}]},
    ("POST", "/v1/download/sync"): {"name": "t1", "source_data": [{"a": 1}]},
    ("POST", "/v1/tasks/delete"): {"task_ids": ["exp-1"]},
    ("POST", "/v1/downloads"): {
        **FILE,
        "file_name": "b",
        "target_agent_id": "a-1",
        "target_user": "root",
        "target_file_dir": "/srv",
        "file_signature": SIGNATURE,
    },
    ("POST", "/v1/projects/{project_id}/keys"): {"scopes": ["read"]},
    ("POST", "/v1/projects"): {"name": "made"},
}


@pytest.fixture(scope="module")
def target() -> Iterator[tuple[MotoCloud, Project]]:
    with MotoCloud() as cloud:
        yield cloud, cloud.project(allow_private_urls=False)


@pytest.fixture(scope="module")
def socket(target: tuple[MotoCloud, Project]) -> tuple[Line, str]:
    cloud, project = target
    line = Line(cloud)
    return line, line.joined(project)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def send(
    target: tuple[MotoCloud, Project], method: str, path: str, values: dict[str, Any], query: dict[str, Any], body: Any
) -> Answer:
    cloud, project = target
    for name in _names_in(path):
        # A gateway does not pass on what is not UTF-8.
        text = text_of(values.get(name, "x")).encode("utf-8", "replace").decode()
        path = path.replace(f"{{{name}}}", quote(text, safe="") or "x")
    query_texts = {name: text_of(value).encode("utf-8", "replace").decode() for name, value in query.items()}
    # An admin key has every scope, so that the route itself is tested.
    headers = {"x-project-id": project.id}
    answer = cloud.http(method, path, json=body, query=query_texts, key=cloud.admin_key, headers=headers)
    if path == "/v1/ops/freeze" and answer.status < 300:
        # Every later example would meet a frozen system.
        assert cloud.http("POST", "/v1/ops/thaw", key=cloud.admin_key).status < 300
    return answer


def _names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _query_of(method: str, path: str) -> list[str]:
    parameters = CONTRACT["paths"][path][method.lower()].get("parameters", [])
    return [parameter["name"] for parameter in parameters if parameter["in"] == "query" and parameter["name"] != "wait"]


def _fields_of(method: str, path: str) -> list[str]:
    body = CONTRACT["paths"][path][method.lower()].get("requestBody")
    if not body:
        return []
    schema = body["content"]["application/json"]["schema"]
    refs = [part["$ref"] for part in (schema, *schema.get("anyOf", ())) if "$ref" in part]
    models = [CONTRACT["components"]["schemas"][ref.rsplit("/", 1)[1]] for ref in refs]
    return [name for model in models for name in model.get("properties", {})]


@pytest.mark.parametrize(("method", "path"), CLOSED, ids=lambda part: part)
def test_odd_value_in_one_place_is_no_5xx(target: tuple[MotoCloud, Project], method: str, path: str) -> None:
    good = GOOD.get((method, path))
    fields = _fields_of(method, path)
    body = good or ({} if fields else None)
    # Each route gets other values, so that a sample of routes covers all of them.
    step = 1 if "FUZZ_EXAMPLES" in os.environ else sample.step(4)
    for value in odd_values.ODD[CLOSED.index((method, path)) % step :: step]:
        tries: list[tuple[dict[str, Any], dict[str, Any], Any]] = []
        tries += [({name: value}, {}, body) for name in _names_in(path)]
        tries += [({}, {name: value}, body) for name in _query_of(method, path)]
        tries += [({}, {}, {**(good or {}), name: value}) for name in fields]
        if good and "payload" in good:
            tries += [({}, {}, {**good, "payload": {**good["payload"], name: value}}) for name in good["payload"]]
            tries.append(({}, {}, {**good, "payload": {**good["payload"], "size": value}}))
        for ids, query, sent_body in tries:
            answer = send(target, method, path, ids, query, sent_body)
            assert answer.status < 500 or answer.status in (502, 504), (ids, query, sent_body, answer.body[:300])


@examples(30)
@given(data=st.data())
def test_odd_values_in_several_places_are_no_5xx(target: tuple[MotoCloud, Project], data: st.DataObject) -> None:
    method, path = data.draw(st.sampled_from(CLOSED))
    values = {name: data.draw(odd_values.values) for name in _names_in(path) if data.draw(st.booleans())}
    query = {name: data.draw(odd_values.values) for name in _query_of(method, path) if data.draw(st.booleans())}
    fields = _fields_of(method, path)
    changed = data.draw(st.sets(st.sampled_from(fields), max_size=2)) if fields else set()
    body = {**GOOD.get((method, path), {}), **{name: data.draw(odd_values.values) for name in changed}}
    answer = send(target, method, path, values, query, body if fields else None)
    assert answer.status < 500 or answer.status in (502, 504), answer.body[:300]


@examples(100)
@given(
    fields=st.dictionaries(
        st.sampled_from(["action", "task_ids", "x"]), odd_values.values | st.lists(odd_values.values), max_size=3
    )
)
def test_every_websocket_message_is_answered(socket: tuple[Line, str], fields: dict[str, Any]) -> None:
    line, client = socket
    text = json.dumps({"action": "unwatch"} | fields)
    # The gateway closes the connection for a larger frame without calling a function.
    assume(len(text) <= aws_limits.FRAME_BYTES)
    assert line.say_text(client, text)
