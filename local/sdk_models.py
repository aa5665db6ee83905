"""Generates layers/client/tidegate_client/models.py, the SDK's records and options, from the OpenAPI document.

`python -m local.sdk_models write | check`. A test checks that the file is up to date."""

from __future__ import annotations

import keyword
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from local.place import ROOT
from tidegate.web.api import build_api
from tidegate.web.openapi import contract

CLIENT = ROOT / "layers" / "client" / "tidegate_client"
MODELS = CLIENT / "models.py"
# The SDK's name of each record, and where the API returns it: a route, or a field of a route's answer. A field that
# only some of the places have is None in the others.
RECORDS: dict[str, tuple[str, ...]] = {
    # Distribution: Tasks, Jobs and their targets.
    "Submitted": ("POST /v1/downloads",),
    "BatchSubmitted": ("POST /v1/downloads/batch",),
    "TaskRef": ("POST /v1/downloads/batch tasks",),
    "Task": ("GET /v1/downloads/{task}",),
    "Job": ("GET /v1/jobs/{job}",),
    "Counts": ("GET /v1/jobs/{job} counts",),
    "JobSwarm": ("GET /v1/jobs/{job} swarm",),
    "JobSpeed": ("GET /v1/jobs/{job} speed",),
    "JobWave": ("GET /v1/jobs/{job} waves",),
    "JobTarget": ("GET /v1/jobs/{job}/targets items",),
    "JobMap": ("GET /v1/jobs/{job}/map",),
    "Redriven": ("POST /v1/jobs/{job}/redrive",),
    "SkippedTarget": ("POST /v1/jobs/{job}/redrive skipped",),
    # Hosts.
    "Agent": ("GET /v1/agents/{agent_id}",),
    "AgentPeers": ("GET /v1/agents/{agent_id} peers",),
    "LastJob": ("GET /v1/agents/{agent_id} last_job",),
    "CurrentTransfer": ("GET /v1/agents/{agent_id} current",),
    "SignInTicket": ("POST /v1/sign-in-tickets",),
    "HostFile": ("GET /v1/agents/{agent_id}/files items",),
    "Enrolment": ("POST /v1/enrolments",),
    "Enrolled": ("POST /v1/agents/enrol",),
    # Releases.
    "Release": ("GET /v1/releases/{name}", "GET /v1/releases items"),
    "ReleaseCounts": ("GET /v1/releases/{name} counts",),
    "ReleaseFile": ("GET /v1/releases/{name} files",),
    "ReleaseHealth": ("GET /v1/releases/{name} health",),
    "ReleaseTargets": ("GET /v1/releases/{name} targets",),
    "ReleaseWave": ("GET /v1/releases/{name} waves",),
    "ReleaseHost": ("GET /v1/releases/{name}/hosts items",),
    "RunResult": ("GET /v1/releases/{name}/hosts items hook",),
    "Revision": ("GET /v1/releases/{name}/revisions/{number}",),
    # Exports.
    "Export": ("GET /v1/task",),
    "ExportProgress": ("GET /v1/task progress",),
    "ExportDelivery": ("GET /v1/task deliveries",),
    "ExportEmail": ("GET /v1/task emails",),
    "Placeholders": ("GET /v1/task/placeholders",),
    "TemplateList": ("GET /v1/task/placeholders lists",),
    "TemplateSheet": ("GET /v1/task/placeholders sheets",),
    "TemplateCell": ("GET /v1/task/placeholders sheets cells",),
    "ExportSchedule": ("GET /v1/export-schedules/{schedule_id}", "GET /v1/export-schedules items"),
    "ExportRun": ("GET /v1/export-schedules/{schedule_id}/runs items",),
    # Batches.
    "Business": ("GET /v1/biz/{biz_id}",),
    "Batch": ("GET /v1/batches/{batch_id}",),
    "BatchProgress": ("GET /v1/batches/{batch_id} progress",),
    "BatchSource": ("GET /v1/batches/{batch_id} source",),
    "BatchBackoff": ("GET /v1/batches/{batch_id} backoff",),
    "BatchItem": ("GET /v1/batches/{batch_id}/items items",),
    "DryRunItem": ("POST /v1/batches/{batch_id}/dry-run items",),
    "BatchSchedule": ("GET /v1/batch-schedules/{schedule_id}", "GET /v1/batch-schedules items"),
    "BatchRun": ("GET /v1/batch-schedules/{schedule_id}/runs items",),
    # The library and its sources.
    "File": ("GET /v1/files/{file_id}",),
    "FileCreated": ("POST /v1/files",),
    "PartsPlan": ("POST /v1/files upload",),
    "Link": ("GET /v1/files/{file_id}/url",),
    "Subscription": ("GET /v1/subscriptions/{subscription_id}",),
    "ScanRun": ("GET /v1/subscriptions/{subscription_id}/runs items",),
    "Preview": ("POST /v1/subscriptions/preview",),
    "PreviewEntry": ("POST /v1/subscriptions/preview items",),
    "Credential": ("GET /v1/credentials items",),
    # The queue.
    "Request": ("GET /v1/requests/{request_id}",),
    "Problem": ("GET /v1/requests/{request_id} error",),
    "LogLine": ("GET /v1/requests/{request_id}/log items",),
    "Bulk": ("POST /v1/requests/bulk",),
    "Ticket": ("POST /v1/ws-tickets",),
    # Projects and keys.
    "Project": ("GET /v1/projects items",),
    "ProjectDetail": ("GET /v1/projects/{project_id}",),
    "ProjectAwsRole": ("GET /v1/projects/{project_id} aws_roles",),
    "ProjectGse": ("GET /v1/projects/{project_id} gse",),
    "ProjectQuotas": ("GET /v1/projects/{project_id} quotas",),
    "Key": ("POST /v1/projects/{project_id}/keys", "POST /v1/keys"),
    "KeyRecord": ("GET /v1/keys items",),
}
BASES = {"ProjectDetail": "Project"}
# What callers send: a body, or a field of one. `Options` are the fields that a body need not have.
BODIES: dict[str, str] = {
    "DownloadOptions": "POST /v1/downloads",
    "BatchDownloadOptions": "POST /v1/downloads/batch",
    "Target": "POST /v1/downloads/batch targets",
    "Wave": "POST /v1/downloads/batch waves",
    "EnrolmentOptions": "POST /v1/enrolments",
    "FileOptions": "POST /v1/files",
    "Politeness": "POST /v1/files politeness",
    "RequestOptions": "POST /v1/requests",
    "SubscriptionOptions": "POST /v1/subscriptions",
    "SubscriptionChanges": "PATCH /v1/subscriptions/{subscription_id}",
    "PreviewOptions": "POST /v1/subscriptions/preview",
    "ExportOptions": "POST /v1/task",
    "BusinessOptions": "POST /v1/biz",
    "BatchOptions": "POST /v1/batches",
    "GseGrant": "PATCH /v1/projects/{project_id} gse",
    "Quotas": "PATCH /v1/projects/{project_id} quotas",
}
BODY_BASES = {"SubscriptionChanges": "SubscriptionOptions"}
_HEAD = '''"""Records of the API as the SDK returns them. Made by `python -m local.sdk_models write`, not by hand.

Fields are attributes (`export.status`) and items (`export["status"]`). A field that the server leaves out is None; one
that a newer server adds is there as an item. At the end are the shapes of what callers send: plain dicts, whose fields
the API's reference describes. What the agent reads and reports: tidegate_client/inputs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

'''
_WIDTH = 120
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
Schema = Mapping[str, Any]


def text() -> str:
    """Returns the source of models.py."""
    parts = [
        _HEAD,
        "from tidegate_client.inputs import *  # noqa: F403 - for those who import all shapes from here",
        "from tidegate_client.inputs import Json\nfrom tidegate_client.model import Model, Page as Page\n",
        "if TYPE_CHECKING:\n    from typing_extensions import NotRequired\n",
        *(_record(name, places) for name, places in RECORDS.items()),
        *(_body(name, place) for name, place in BODIES.items()),
        "# The name of 1.1.\nSelection = PreviewOptions\n",
    ]
    return formatted("\n\n".join(parts), MODELS)


def _record(name: str, places: tuple[str, ...]) -> str:
    found = {place: list(_schemas(place)) for place in places}
    every = [schema for schemas in found.values() for schema in schemas]
    lines = [f"class {name}({BASES.get(name, 'Model')}):", *_docstring(places, every)]
    fields = {field: shape for schema in reversed(every) for field, shape in schema["properties"].items()}
    ordered = dict.fromkeys(field for schema in every for field in schema["properties"])
    for field in ordered:
        kind = _type(fields[field], f"{name}.{field}")
        always = all(field in schema["properties"] and _is_sent(schema, field) for schema in every)
        if not (always or kind.startswith("Optional[") or kind == "Json"):
            kind = f"Optional[{kind}]"
        comment = fields[field].get("description", "")
        if missing := [place for place, schemas in found.items() if all(field not in s["properties"] for s in schemas)]:
            comment += f" (not returned by {' and '.join(map(_in_words, missing))})"
        # A field called `items` would hide the method of dict.
        suffix = "_" if hasattr(dict, field) or keyword.iskeyword(field) else ""
        declared = f"    {field}{suffix}: {kind}"
        if comment and len(f"{declared}  # {comment}") <= _WIDTH:
            lines.append(f"{declared}  # {comment}")
        else:
            lines += [f"    # {line}" for line in textwrap.wrap(comment, 110, break_on_hyphens=False)] + [declared]
    return "\n".join(lines)


def _body(name: str, place: str) -> str:
    """Returns the source of a TypedDict for a request body or a part of one.
    Optional fields may be left out or None."""
    (schema,) = _schemas(place, sent=True)
    base = BODY_BASES.get(name)
    (inherited,) = _schemas(BODIES[base], sent=True) if base else ({"properties": {}},)
    needed = () if name.endswith("Options") else schema.get("required", ())
    lines = [f"class {name}({base or 'TypedDict'}{'' if needed else ', total=False'}):"]
    lines += _docstring((place,), [schema], "Sent with")
    for field, declared in schema["properties"].items():
        if field in schema.get("required", ()) and field not in needed:
            continue
        if field in inherited["properties"] and field not in inherited.get("required", ()):
            continue
        kind = _type(declared, f"{name}.{field}", _sent_names())
        # Any sequence and any mapping can be sent.
        kind = kind.replace("list[", "Sequence[").replace("dict[", "Mapping[").replace("Model", "Mapping[str, Any]")
        if field not in needed:
            kind = kind if kind.startswith("Optional[") or kind == "Json" else f"Optional[{kind}]"
            kind = f"NotRequired[{kind}]" if needed else kind
        lines.append(f"    {field}: {kind}")
    return "\n".join(lines)


def _docstring(places: tuple[str, ...], schemas: list[Schema], verb: str = "Returned by") -> list[str]:
    described = next((schema["description"] for schema in schemas if schema.get("description")), "")
    lines = textwrap.wrap(
        f"{described} {verb} {' and '.join(map(_in_words, places))}.".strip(), 110, break_on_hyphens=False
    )
    return textwrap.indent('"""' + "\n".join(lines) + '"""', "    ").splitlines()


def _in_words(place: str) -> str:
    method, path, *field = place.split()
    return f"`{method} {path}`" + (f", in `{field[0]}`" if field else "")


def _is_sent(schema: Schema, field: str) -> bool:
    return field in schema.get("required", ()) or "default" in schema["properties"][field]


def _type(schema: Schema, where: str, names: Mapping[str, str] | None = None) -> str:
    """Returns the Python type of a schema.
    `names`: the classes within a body; other objects become `dict[str, Any]`."""
    if "$ref" in schema:
        name = _names().get(schema["$ref"]) if names is None else names.get(schema["$ref"], "Model")
        if name is None:
            raise KeyError(f"name the record of {where} ({schema['$ref']}) in local/sdk_models.py, RECORDS")
        return name
    if "anyOf" in schema:
        kinds = list(dict.fromkeys(_type(one, where, names) for one in schema["anyOf"]))
        if {"int", "float"} <= set(kinds):
            kinds.remove("int")
        some = [kind for kind in kinds if kind != "None"]
        # Not `X | None`: the client reads these types when it runs, and Python 3.9 cannot evaluate that.
        union = some[0] if len(some) == 1 else f"Union[{', '.join(some)}]"
        return union if some == kinds else f"Optional[{union}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema['items'], where, names)}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values, where, names)}]" if isinstance(values, dict) else "Model"
    if kind == "null":
        return "None"
    # Data that callers store, which has any type.
    return _TYPES[kind] if kind else "Json"


@cache
def _document() -> Schema:
    return contract(build_api())


@cache
def _names() -> dict[str, str]:
    """Returns the SDK's class for each schema of the document."""
    return {ref: name for name, places in RECORDS.items() for place in places for ref in _refs(place)}


@cache
def _sent_names() -> dict[str, str]:
    """Returns the name of the TypedDict for each schema of a request body."""
    return {
        ref: name for name, place in BODIES.items() if not name.endswith("Options") for ref in _refs(place, sent=True)
    }


def _schemas(place: str, *, sent: bool = False) -> Iterator[Schema]:
    for ref in _refs(place, sent=sent):
        yield _document()["components"]["schemas"][ref.rpartition("/")[2]]


def _refs(place: str, *, sent: bool = False) -> list[str]:
    """Returns the schemas of what is sent or returned at this place of the API.

    There are several if the route has several answers."""
    method, path, *fields = place.split()
    operation = _document()["paths"][path][method.lower()]
    answers = [answer for status, answer in operation["responses"].items() if status < "3"]
    bodies = [each["content"] for each in ([operation["requestBody"]] if sent else answers) if "content" in each]
    found = [ref for body in bodies for ref in _inner_refs(body["application/json"]["schema"])]
    for field in fields:
        schemas = [_document()["components"]["schemas"][ref.rpartition("/")[2]]["properties"] for ref in found]
        found = [ref for schema in schemas for ref in _inner_refs(schema.get(field, {}))]
    if not found:
        raise KeyError(f"{place} has no schema")
    return list(dict.fromkeys(found))


def _inner_refs(schema: Schema) -> list[str]:
    if "$ref" in schema:
        return [schema["$ref"]]
    return [ref for one in [*schema.get("anyOf", ()), schema.get("items", {})] if one for ref in _inner_refs(one)]


def formatted(source: str, file: Path) -> str:
    """Formats generated source as this repository does. `file`: where it will be written."""
    ruff = str(Path(sys.executable).parent / "ruff")
    fixed = [ruff, "check", "-q", "--select", "I,F401", "--fix-only", "--stdin-filename", str(file), "-"]
    for command in (fixed, [ruff, "format", "-q", "--stdin-filename", str(file), "-"]):
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return source


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(0 if MODELS.read_text() == text() else "models.py is outdated: run python -m local.sdk_models write")
    if sys.argv[1:] != ["write"]:
        sys.exit("usage: python -m local.sdk_models write | check")
    MODELS.write_text(text())
