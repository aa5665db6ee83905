"""The contract as it is published: what Powertools reads from the routes, and what it cannot know.

Powertools knows one answer a route, always JSON. Here are the others: problems, redirects, files, empty answers, the
`Idempotency-Key`, and fields that may come in the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver

from tidegate.web.problems import CONTENT_TYPE
from tidegate.web.scopes import ScopedResolver

if TYPE_CHECKING:
    from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

Schema = dict[str, Any]
TITLE, VERSION = "Tidegate", "1.0.0"


def _json(model: str, text: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {"description": text, "content": content}


_PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["loc", "msg"],
                "properties": {
                    "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                    "msg": {"type": "string"},
                },
            },
        },
    },
}
_EVERYWHERE = {
    "400": "Broken JSON or path",
    "401": "No valid key",
    "403": "Scope missing",
    "404": "Not found",
    "409": "Conflict",
    "413": "Too large",
    "422": "Not valid",
    "429": "A quota or the rate of the project is used up; Retry-After says when to come again",
    "500": "A fault of ours",
    "503": "Try again",
}
_LOCATION = {"location": {"required": True, "schema": {"type": "string"}}}
_REDIRECT: Schema = {"description": "Leads to a link that lives 300 s", "headers": _LOCATION}
_FILE: Schema = {
    "description": "The file",
    "headers": {"content-disposition": {"required": True, "schema": {"type": "string"}}},
    "content": {
        "text/csv": {"schema": {"type": "string", "description": "one line a row"}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "one JSON object a line"}},
        "application/gzip": {"schema": {"type": "string", "description": "csv or jsonl, compressed"}},
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": {
            "schema": {"type": "string", "description": "an Excel workbook"}
        },
        "application/vnd.apache.parquet": {"schema": {"type": "string", "description": "a Parquet file"}},
        "application/zip": {"schema": {"type": "string", "description": "several files, past rows_per_file"}},
    },
}
_UPSTREAM = {"502": "The source failed", "504": "The source took too long"}
_SYNC = {"200": _FILE, "303": _REDIRECT}
_ANSWERS: dict[tuple[str, str], Schema] = {
    ("post", "/v1/files"): {
        "201": _json("UploadAnswer", "Announced: put the content there"),
        "202": _json("IngestAnswer", "Accepted: with a source_url"),
    },
    ("get", "/v1/download/async"): {"302": _REDIRECT},
    **{(method, f"/v1/download/sync{tail}"): _SYNC for method in ("get", "post") for tail in ("", "/multiple")},
}
_PROBLEMS: dict[str, dict[str, str]] = {
    "/v1/download/url": {"410": "Past its retention"},
    "/v1/download/async": {"410": "Past its retention"},
    "/v1/download/sync": _UPSTREAM,
    "/v1/download/sync/multiple": _UPSTREAM,
    "/v1/task/sample": _UPSTREAM,
    "/v1/subscriptions/preview": _UPSTREAM,
}
_IN_QUERY = {"/v1/download/sync": "SyncBody", "/v1/download/sync/multiple": "SyncMultipleBody"}
_PARAMETER = re.compile(r"<(\w+)>")
_PLAIN_TYPES = {"string", "integer", "number", "boolean", "null"}
_IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the same key and body give the same answer for 24 h",
    "schema": {"type": "string", "maxLength": 255},
}


class Api(ScopedResolver):
    """Tells the whole contract, not only what Powertools reads from the routes."""

    def get_openapi_schema(self, **options: Any) -> OpenAPI:
        from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

        known = super().get_openapi_schema(**options)
        return OpenAPI.model_validate(_completed(known.model_dump(mode="json", by_alias=True, exclude_none=True), self))


def contract(api: Api) -> Schema:
    """The whole contract as JSON, with its texts, examples and webhooks."""
    # Read from files and imported only here: no request but this one needs them.
    from tidegate.web.reference.document import completed

    return completed(json.loads(api.get_openapi_json_schema(title=TITLE, version=VERSION)))


def _completed(schema: Schema, resolver: Api) -> Schema:
    # Where this document lies, the API is: under a stage, a folder or another name just as well.
    schema["servers"] = [{"url": "."}]
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError", "ResponseValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = _PROBLEM
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    once = set(_idempotent_routes(resolver))
    scopes = {
        (method.lower(), _PARAMETER.sub(r"{\1}", rule)): scope for (method, rule), scope in resolver.scopes.items()
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _answers(method, path, operation["responses"])
            scope = scopes[method, path]
            if scope != "open":
                operation["security"] = [{"key": [scope]}]
            if (method, path) in once:
                operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
    for path, model in _IN_QUERY.items():
        schema["paths"][path]["get"]["parameters"] = list(_as_query(schemas[model]))
    return schema


def _answers(method: str, path: str, found: Schema) -> Schema:
    expected = {status: answer for status, answer in found.items() if status not in ("422", "500")}
    if "204" in expected:
        expected["204"] = {"description": "Done"}
    told = _EVERYWHERE | _PROBLEMS.get(path, {}) if path.startswith("/v1/") else {"500": _EVERYWHERE["500"]}
    return expected | _ANSWERS.get((method, path), {}) | {status: _problem(text) for status, text in told.items()}


def _problem(text: str) -> Schema:
    return {"description": text, "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _idempotent_routes(resolver: APIGatewayHttpResolver) -> Iterator[tuple[str, str]]:
    for route in [*resolver._static_routes, *resolver._dynamic_routes]:
        if any(middleware.__name__.startswith("idempotent") for middleware in route.middlewares):
            yield route.method.lower(), route.openapi_path


def _as_query(model: Schema) -> Iterator[Schema]:
    """A body's fields as parameters; objects and lists come as strings holding JSON."""
    for name, field in model["properties"].items():
        types = {option.get("type") for option in field.get("anyOf", [field])}
        yield {"name": name, "in": "query", "schema": field if types <= _PLAIN_TYPES else {"type": "string"}}
