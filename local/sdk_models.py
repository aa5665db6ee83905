"""Writes layers/client/tidegate_client/models.py: the SDK's records, generated from the OpenAPI document.

`python -m local.sdk_models write | check`. A test checks that the file is up to date.
"""

from __future__ import annotations

import ast
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
MODELS, INPUTS = CLIENT / "models.py", CLIENT / "inputs.py"
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
_HEAD = '''"""Records of the API as the SDK returns them. Made by `python -m local.sdk_models write`, not by hand.

Fields are attributes (`export.status`) and items (`export["status"]`). A field that the server leaves out is None; one
that a newer server adds is there as an item. What callers send, and what the agent reads, are plain dicts with a
declared shape: tidegate_client/inputs.py."""

from __future__ import annotations

from typing import Optional, Union

'''
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
Schema = Mapping[str, Any]


def text() -> str:
    # Parsed, not imported: the client may name a record that this is about to add to its models.
    plain = [node.name for node in ast.parse(INPUTS.read_text()).body if isinstance(node, ast.ClassDef)]
    plain.append("Json")
    everything = sorted([*plain, *RECORDS, "Model", "Page"])
    parts = [
        _HEAD,
        f"from tidegate_client.inputs import {', '.join(plain)}\nfrom tidegate_client.model import Model, Page\n",
        f"__all__ = [{', '.join(map(repr, everything))}]\n",
        *(_record(name, places) for name, places in RECORDS.items()),
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
        lines += [f"    # {line}" for line in textwrap.wrap(comment, 110, break_on_hyphens=False)]
        # A field called `items` would hide the method of dict.
        suffix = "_" if hasattr(dict, field) or keyword.iskeyword(field) else ""
        lines.append(f"    {field}{suffix}: {kind}")
    return "\n".join(lines)


def _docstring(places: tuple[str, ...], schemas: list[Schema]) -> list[str]:
    described = next((schema["description"] for schema in schemas if schema.get("description")), "")
    returned_by = " and ".join(map(_in_words, places))
    lines = textwrap.wrap(f"{described} Returned by {returned_by}.".strip(), 110, break_on_hyphens=False)
    return textwrap.indent('"""' + "\n".join(lines) + '"""', "    ").splitlines()


def _in_words(place: str) -> str:
    method, path, *field = place.split()
    return f"`{method} {path}`" + (f", in `{field[0]}`" if field else "")


def _is_sent(schema: Schema, field: str) -> bool:
    return field in schema.get("required", ()) or "default" in schema["properties"][field]


def _type(schema: Schema, where: str) -> str:
    if "$ref" in schema:
        name = _names().get(schema["$ref"])
        if name is None:
            raise KeyError(f"name the record of {where} ({schema['$ref']}) in local/sdk_models.py, RECORDS")
        return name
    if "anyOf" in schema:
        kinds = list(dict.fromkeys(_type(one, where) for one in schema["anyOf"]))
        if {"int", "float"} <= set(kinds):
            kinds.remove("int")
        some = [kind for kind in kinds if kind != "None"]
        # Not `X | None`: the client reads these types when it runs, and Python 3.9 cannot evaluate that.
        union = some[0] if len(some) == 1 else f"Union[{', '.join(some)}]"
        return union if some == kinds else f"Optional[{union}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema['items'], where)}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values, where)}]" if isinstance(values, dict) else "Model"
    if kind == "null":
        return "None"
    # Data that callers store, which has any type.
    return _TYPES[kind] if kind else "Json"


@cache
def _document() -> Schema:
    return contract(build_api())


@cache
def _names() -> dict[str, str]:
    """The SDK's record for each schema of the document."""
    return {ref: name for name, places in RECORDS.items() for place in places for ref in _refs(place)}


def _schemas(place: str) -> Iterator[Schema]:
    for ref in _refs(place):
        yield _document()["components"]["schemas"][ref.rpartition("/")[2]]


def _refs(place: str) -> list[str]:
    """References to the schemas of what is returned at this place; several if the route has several answers."""
    method, path, *fields = place.split()
    answers = _document()["paths"][path][method.lower()]["responses"]
    bodies = [answer["content"] for status, answer in answers.items() if status < "3" and "content" in answer]
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
    """Generated source in the style of this repository. `file`: where it will be written."""
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
