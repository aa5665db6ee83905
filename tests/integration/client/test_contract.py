"""Client and server agree: every call of the client is a route of the server, with fields that it accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NotRequired, Self, Unpack, get_args
from typing import get_type_hints as type_hints
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.moto.cloud import MotoCloud
from tidegate_client import inputs, models
from tidegate_client.client import Client
from tidegate_client.model import Model

FILE: dict[str, Any] = {"biz_id": 1, "app_id": 2, "file_path": "/a", "file_name": "a"}
SENT: dict[str, Any] = FILE | {
    "target_user": "u",
    "target_file_dir": "/d",
    "file_signature": "a" * 64,
    "callback": "https://x.example",
}
CALLS: dict[str, Callable[[Client], object]] = {
    "projects.create": lambda c: c.projects.create("n", group="g"),
    "projects.list": lambda c: c.projects.list(limit=1, cursor="c"),
    "keys.create": lambda c: c.keys.create("p", ["agent"], agent_id="a"),
    "projects.get": lambda c: c.projects.get("p"),
    "projects.update": lambda c: c.projects.update("p", {"name": "n", "quotas": {"queued": 1}}),
    "keys.create_named": lambda c: c.keys.create("p", ["read"], name="n", expires_in=1),
    "keys.create_admin": lambda c: c.keys.create_admin(name="n", expires_in=1),
    "keys.list": lambda c: c.keys.list("p", limit=1, cursor="c"),
    "keys.list_admin": lambda c: c.keys.list_admin(limit=1, cursor="c"),
    "keys.rotate": lambda c: c.keys.rotate("k", overlap_s=1),
    "keys.sign_in_ticket": lambda c: c.keys.sign_in_ticket(),
    "keys.delete": lambda c: c.keys.delete("k"),
    "files.create": lambda c: c.files.create(**FILE, signature="a" * 64, size=1),
    "files.ingest": lambda c: c.files.create(
        **FILE, source_url="https://x.example", channel="no_cookie", credentials="n", priority=1
    ),
    "files.complete": lambda c: c.files.complete("f"),
    "files.get": lambda c: c.files.get("f"),
    "files.list": lambda c: c.files.list(biz_id=1, app_id=2, file_path="/a", limit=1, cursor="c"),
    "files.url": lambda c: c.files.url("f"),
    "downloads.submit": lambda c: c.downloads.submit(**SENT, target_agent_id="a", target_container_id="c"),
    "downloads.submit_batch": lambda c: c.downloads.submit_batch(**SENT, targets=[{"agent_id": "a"}]),
    "downloads.get": lambda c: c.downloads.get("t"),
    "downloads.list": lambda c: c.downloads.list(job_id="j", status="Running", limit=1, cursor="c"),
    "jobs.get": lambda c: c.jobs.get("j"),
    "jobs.targets": lambda c: c.jobs.targets("j", status="Running", limit=1, cursor="c"),
    "jobs.list": lambda c: c.jobs.list(biz_id=1, app_id=2, file_path="/a", status="Running", limit=1, cursor="c"),
    "agents.transfers": lambda c: c.agents.transfers("a", wait=1),
    "agents.report": lambda c: c.agents.report(
        "a", [{"transfer_id": "t", "container_id": "", "error_code": 1, "error_msg": "m", "progress": 1}]
    ),
    "exports.submit": lambda c: c.exports.submit({"name": "nn", "source_data": []}),
    "exports.submit_multiple": lambda c: c.exports.submit({"name": "nn", "source_data": []}, multiple=True),
    "exports.placeholders": lambda c: c.exports.placeholders("f"),
    "exports.get": lambda c: c.exports.get("t"),
    "exports.list": lambda c: c.exports.list(
        status="failed", operator_id="o", merchant_type=1, merchant_id="m", name="n", limit=1, cursor="c"
    ),
    "exports.delete": lambda c: c.exports.delete(["t"]),
    "exports.url": lambda c: c.exports.url("t"),
    "exports.repeat": lambda c: c.exports.repeat({"name": "nn", "source_data": []}, "rate(1 day)"),
    "exports.repeat_multiple": lambda c: c.exports.repeat({"name": "nn"}, "rate(1 day)", multiple=True),
    "exports.schedules": lambda c: c.exports.schedules(limit=1, cursor="c"),
    "exports.schedule": lambda c: c.exports.schedule("s"),
    "exports.runs": lambda c: c.exports.runs("s", limit=1, cursor="c"),
    "exports.update_schedule": lambda c: c.exports.update_schedule("s", {"schedule": "rate(1 hour)", "paused": True}),
    "exports.pause_schedule": lambda c: c.exports.pause_schedule("s"),
    "exports.resume_schedule": lambda c: c.exports.resume_schedule("s"),
    "exports.delete_schedule": lambda c: c.exports.delete_schedule("s"),
    "exports.sync": lambda c: c.exports.sync({"name": "nn", "source_data": []}),
    "exports.sync_multiple": lambda c: c.exports.sync({"name": "nn", "source_data": []}, multiple=True),
    "businesses.create": lambda c: c.businesses.create(
        "n", "https://x", before_create_url="b", before_run_url="r", process_stop_url="s", auth_code="a", rate=5
    ),
    "businesses.update": lambda c: c.businesses.update("b", name="n", process_url="https://x"),
    "businesses.list": lambda c: c.businesses.list(limit=1, cursor="c"),
    "batches.create": lambda c: c.batches.create(
        biz_id="b",
        name="n",
        total=1,
        rate=1,
        concurrency=1,
        start_index=0,
        job_data={},
        max_errors=1,
        retries=5,
        retry_delay=3,
        priority=1,
        source={"file_id": "f"},
        on_item_failure="skip",
        max_failed=1,
        max_failed_percent=2.5,
        item_timeout=60,
        ack="async",
        items_per_call=10,
        progress_url="https://x",
        progress_every_items=100,
        progress_every_percent=5,
        pause_windows=[{"start": "22:00", "end": "06:00"}],
    ),
    "batches.get": lambda c: c.batches.get("b"),
    "batches.repeat": lambda c: c.batches.repeat("rate(1 hour)", biz_id="b", name="n", total=1, rate=1, retries=1),
    "batches.schedules": lambda c: c.batches.schedules(limit=1, cursor="c"),
    "batches.schedule": lambda c: c.batches.schedule("s"),
    "batches.update_schedule": lambda c: c.batches.update_schedule(
        "s", schedule="rate(1 hour)", timezone="Asia/Shanghai", paused=False, batch={"rate": 2}, revision=1
    ),
    "batches.runs": lambda c: c.batches.runs("s", limit=1, cursor="c"),
    "batches.delete_schedule": lambda c: c.batches.delete_schedule("s"),
    "batches.list": lambda c: c.batches.list(status="running", limit=1, cursor="c"),
    "batches.start": lambda c: c.batches.start("b"),
    "batches.stop": lambda c: c.batches.stop("b"),
    "batches.update": lambda c: c.batches.update("b", rate=5),
    "batches.items": lambda c: c.batches.items("b", state="failed", limit=1, cursor="c"),
    "batches.results": lambda c: c.batches.results("b"),
    "batches.redrive": lambda c: c.batches.redrive("b", states=["failed"]),
    "batches.send_result": lambda c: c.batches.send_result("b", 3, "ok", msg="m"),
    "batches.logs": lambda c: c.batches.logs("b", index=1, limit=1, cursor="c"),
    "batches.export_logs": lambda c: c.batches.export_logs("b"),
    "queue.stats": lambda c: c.queue.stats(),
    "queue.list": lambda c: c.queue.list(channel="export", status="queued", limit=1, cursor="c"),
    "queue.pause": lambda c: c.queue.pause("export"),
    "queue.resume": lambda c: c.queue.resume(),
    "queue.capacity": lambda c: c.queue.capacity({"export": 4}),
    "requests.create": lambda c: c.requests.create("scan", {}, subscription_id="s", priority=1, channel="no_cookie"),
    "requests.get": lambda c: c.requests.get("r"),
    "requests.cancel": lambda c: c.requests.cancel("r"),
    "requests.pause": lambda c: c.requests.pause("r"),
    "requests.resume": lambda c: c.requests.resume("r"),
    "requests.retry": lambda c: c.requests.retry("r"),
    "requests.prioritize": lambda c: c.requests.prioritize("r", 1),
    "requests.bulk": lambda c: c.requests.bulk("prioritize", priority=1, status="failed"),
    "requests.later": lambda c: c.requests.create("scan", {}, not_before="2026-11-16T05:00:00Z", dedupe_key="k"),
    "requests.log": lambda c: c.requests.log("r", limit=1, cursor="c"),
    "subscriptions.choice": lambda c: c.subscriptions.create(
        "n", "https://x.example", format="rss", include=["*"], exclude=["x"], file_path="/{name}", priority=1
    ),
    "subscriptions.update": lambda c: c.subscriptions.update("s", {"name": "n", "schedule": None}),
    "subscriptions.preview": lambda c: c.subscriptions.preview("https://x.example", format="rss", include=["*"]),
    "subscriptions.pause": lambda c: c.subscriptions.pause("s"),
    "subscriptions.resume": lambda c: c.subscriptions.resume("s"),
    "subscriptions.create": lambda c: c.subscriptions.create("n", "https://x", schedule="rate(1 hour)"),
    "subscriptions.list": lambda c: c.subscriptions.list(limit=1, cursor="c"),
    "subscriptions.download": lambda c: c.subscriptions.download("s"),
    "subscriptions.runs": lambda c: c.subscriptions.runs("s", limit=1, cursor="c"),
    "subscriptions.tasks": lambda c: c.subscriptions.tasks("s", limit=1, cursor="c"),
    "subscriptions.delete": lambda c: c.subscriptions.delete("s"),
    "subscriptions.get": lambda c: c.subscriptions.get("s"),
    "credentials.put": lambda c: c.credentials.put("n", {"Cookie": "x"}, ["https://x.example"]),
    "credentials.delete": lambda c: c.credentials.delete("n"),
    "projects.origin_secret": lambda c: c.projects.origin_secret("https://x.example"),
    "projects.rotate_callback_secret": lambda c: c.projects.rotate_callback_secret("p"),
    "projects.retire_callback_secret": lambda c: c.projects.retire_callback_secret("p"),
    "compensation.get": lambda c: c.compensation.get(),
    "compensation.trigger": lambda c: c.compensation.trigger(),
    "callbacks.list": lambda c: c.callbacks.list(task_id="t", limit=1, cursor="c"),
    "callbacks.redeliver": lambda c: c.callbacks.redeliver("d"),
    "operations.stats": lambda c: c.operations.stats("2026-01-01T00:00:00Z"),
    "operations.audit": lambda c: c.operations.audit(
        "r", actor="k", action="key.create", since="2026-01-01", until="2026-02-01", limit=1, cursor="c"
    ),
    "operations.archive": lambda c: c.operations.archive(
        "2026-11-16", type="check", status="failed", request_id="r", limit=1, cursor="c"
    ),
    "operations.cleanup": lambda c: c.operations.cleanup(),
    "queue.host_pauses": lambda c: c.queue.host_pauses(),
    "queue.clear_host_pause": lambda c: c.queue.clear_host_pause("https://files.example"),
    "requests.retry_now": lambda c: c.requests.retry_now("r"),
    "operations.freeze": lambda c: c.operations.freeze("a restore"),
    "operations.reconcile": lambda c: c.operations.reconcile(),
    "operations.thaw": lambda c: c.operations.thaw(),
    "operations.ticket": lambda c: c.operations.ticket(),
    "operations.health": lambda c: c.operations.health(),
    "jobs.cancel": lambda c: c.jobs.cancel("j"),
    "jobs.redrive": lambda c: c.jobs.redrive("j"),
    "jobs.map": lambda c: c.jobs.map("j"),
    "agents.ask": lambda c: c.agents.ask("a", [{"name": "app", "revision": 1, "state": "current"}], ["0" * 64]),
    "releases.put": lambda c: c.releases.put("app", {"files": [], "targets": {}}),
    "releases.list": lambda c: c.releases.list(limit=1, cursor="c"),
    "releases.get": lambda c: c.releases.get("app"),
    "releases.revisions": lambda c: c.releases.revisions("app", limit=1, cursor="c"),
    "releases.revision": lambda c: c.releases.revision("app", 1),
    "releases.hosts": lambda c: c.releases.hosts("app", state="failed", limit=1, cursor="c"),
    "releases.drift": lambda c: c.releases.drift("app", limit=1, cursor="c"),
    "releases.rollback": lambda c: c.releases.rollback("app", to=1),
    "releases.pause": lambda c: c.releases.pause("app"),
    "releases.resume": lambda c: c.releases.resume("app"),
    "releases.activate": lambda c: c.releases.activate("app"),
    "releases.gate": lambda c: c.releases.gate("app", passes=False, reason="why"),
    "releases.delete": lambda c: c.releases.delete("app"),
    "agents.list": lambda c: c.agents.list(group="g", state="online", limit=1, cursor="c"),
    "agents.files": lambda c: c.agents.files("a", limit=1, cursor="c"),
    "agents.get": lambda c: c.agents.get("a"),
    "agents.create_enrolment": lambda c: c.agents.create_enrolment(groups=["g"]),
    "agents.enrol_by_aws": lambda c: c.agents.enrol_by_aws(
        {"region": "eu-central-1", "headers": {"Authorization": "a"}}, "i-1", version="1", zone="z", claim="c" * 16
    ),
    "agents.enrol": lambda c: c.agents.enrol("t", "a", version="1", zone="z"),
    "batches.dry_run": lambda c: c.batches.dry_run("b", items=1),
    "credentials.list": lambda c: c.credentials.list(),
}


class Recorder:
    """Replaces the connection pool and records the one request."""

    def request(self, method: str, url: str, *, body: bytes | None = None, **_: Any) -> Any:
        self.method, self.url, self.body = method, url, body
        raise Sent


class Sent(Exception):
    pass


@pytest.fixture(scope="module")
def contract() -> Any:
    with MotoCloud() as cloud:
        return cloud.http("GET", "/openapi.json").json()


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_the_client_is_a_route_of_the_server(contract: Any, name: str) -> None:
    recorder = Recorder()
    with pytest.raises(Sent):
        CALLS[name](Client("https://api", "key", pool=recorder))  # type: ignore[arg-type]

    operation = route_for(contract, recorder.method, urlsplit(recorder.url).path)

    accepted = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"}
    assert set(dict(parse_qsl(urlsplit(recorder.url).query))) <= accepted
    fields = set(json.loads(recorder.body or b"{}"))
    allowed = body_fields(contract, operation)
    assert allowed is None or fields <= allowed


def route_for(contract: Any, method: str, path: str) -> Mapping[str, Any]:
    # Routes without variables are tried first.
    for template in sorted(contract["paths"], key=lambda one: one.count("{")):
        pattern = re.sub(r"[{<]\w+[}>]", "[^/]+", template)
        if re.fullmatch(pattern, path) and method.lower() in contract["paths"][template]:
            operation: Mapping[str, Any] = contract["paths"][template][method.lower()]
            return operation
    raise AssertionError(f"the server has no {method} {path}")


def body_fields(contract: Any, operation: Mapping[str, Any]) -> set[str] | None:
    """The fields of the route's body; None if it takes any field, or has no schema."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        schema = contract["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return set(schema["properties"]) if "properties" in schema else None


def test_records_of_the_sdk_have_exactly_the_fields_of_the_answers(contract: Any) -> None:
    """By the types of the client's methods and the routes that they call, not by the table of local/sdk_models.py."""
    seen: dict[type, set[str]] = {}
    for name, call in CALLS.items():
        recorder = Recorder()
        client = Client("https://api", "key", pool=recorder)  # type: ignore[arg-type]
        with pytest.raises(Sent):
            call(client)
        returned, in_page = returned_record(client, name)
        if returned is None:
            continue
        answers = route_for(contract, recorder.method, urlsplit(recorder.url).path)["responses"]
        for status, answer in answers.items():
            if status < "3":
                found = answer["content"]["application/json"]["schema"]
                compare(contract, returned, found, seen, "items" if in_page else None)

    records = {kind for kind in vars(models).values() if isinstance(kind, type) and issubclass(kind, Model)}
    assert {kind.__name__ for kind in records - {Model} - seen.keys()} == set(), "no call returns these"
    # A trailing underscore stands for a name that is taken, as in `items_`.
    declared = {kind.__name__: {field.removesuffix("_") for field in get_type_hints(kind)} for kind in seen}
    assert declared == {kind.__name__: fields for kind, fields in seen.items()}


# The client imports these for type checkers only.
NEWER = {"NotRequired": NotRequired, "Self": Self, "Unpack": Unpack}


def get_type_hints(of: Any) -> dict[str, Any]:
    return type_hints(of, localns=NEWER)


def returned_record(client: Client, call: str) -> tuple[type[Model] | None, bool]:
    """The record that the method of this name returns, and whether it is within a list."""
    resource, _, method = call.partition(".")
    function = getattr(getattr(client, resource), method, None)
    # Names such as `keys.create_named` are variants of a call in CALLS.
    hint = get_type_hints(function).get("return") if function else None
    inner = get_args(hint)
    kind = inner[0] if inner else hint
    is_record = isinstance(kind, type) and issubclass(kind, Model) and kind is not Model
    return (kind if is_record else None), bool(inner)


def compare(contract: Any, kind: type, schema: Any, seen: dict[type, set[str]], field: str | None = None) -> None:
    """Notes the fields of every answer of this kind, and those of the records within it."""
    for properties in objects_in(contract, schema):
        if field:
            compare(contract, kind, properties[field], seen)
            continue
        seen.setdefault(kind, set()).update(properties)
        hints = get_type_hints(kind)
        for name, inner in properties.items():
            hint = hints.get(name) or hints.get(f"{name}_")
            nested = [one for one in records_in(hint) if one is not Model]
            assert bool(nested) == bool(list(objects_in(contract, inner))), f"{kind.__name__}.{name}"
            # Records within themselves do not occur.
            for one in nested:
                compare(contract, one, inner, seen)


def objects_in(contract: Any, schema: Any) -> Iterator[Any]:
    """The properties of each object that the schema is, or is a list of."""
    if "$ref" in schema:
        schema = contract["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        yield schema["properties"]
    for one in [*schema.get("anyOf", ()), schema.get("items") or {}]:
        yield from objects_in(contract, one) if one else ()


def records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, Model):
        yield hint
    for inner in get_args(hint):
        yield from records_in(inner)


@pytest.mark.parametrize(
    ("shape", "place"),
    [
        (models.Target, "POST /v1/downloads/batch targets"),
        (models.Wave, "POST /v1/downloads/batch waves"),
        (models.Politeness, "POST /v1/files politeness"),
        (models.SubscriptionChanges, "PATCH /v1/subscriptions/s"),
        (models.GseGrant, "PATCH /v1/projects/p gse"),
        (models.Quotas, "PATCH /v1/projects/p quotas"),
        (inputs.Presence, "PUT /v1/agents/a/presence"),
        (inputs.TransferResult, "POST /v1/agents/a/results items"),
    ],
)
def test_shapes_that_callers_send_have_the_fields_of_the_body(contract: Any, shape: type, place: str) -> None:
    method, path, *field = place.split()
    body = route_for(contract, method, path)["requestBody"]["content"]["application/json"]["schema"]
    (accepted,) = objects_in(contract, body)
    for name in field:
        (accepted,) = objects_in(contract, accepted[name])
    assert set(get_type_hints(shape)) == set(accepted)


def test_shape_of_a_transfer_has_the_fields_of_the_answer(contract: Any) -> None:
    found = route_for(contract, "GET", "/v1/agents/a/transfers")["responses"]["200"]["content"]["application/json"]
    (answer,) = objects_in(contract, found["schema"])
    (transfer,) = objects_in(contract, answer["items"])
    assert set(get_type_hints(inputs.Transfer)) == set(transfer)
