"""The OpenAPI document of the API.

Powertools generates the document from the routes, with one JSON answer for each route. This module adds what the routes
do not declare: problems, redirects, files, empty answers, `Idempotency-Key`, security, and bodies whose fields may come
in the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver

from tidegate.web.routing import CONTENT_TYPE, ScopedResolver

if TYPE_CHECKING:
    from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

Schema = dict[str, Any]
TITLE, VERSION = "Tidegate", "1.1.0"


def _json(text: str, *models: str) -> Schema:
    refs = [{"$ref": f"#/components/schemas/{model}"} for model in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


_PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "a URI of the kind of error: `urn:tidegate:` and the code"},
        "title": {"type": "string", "description": "the kind of error, the same for each `code`"},
        "status": {"type": "integer", "description": "the HTTP status"},
        "detail": {"type": "string", "description": "what was wrong, with which value, and what to do; for people"},
        "code": {
            "type": "string",
            "pattern": "^[a-z][a-z0-9_]*$",
            "description": "identifies the kind of error; stable",
        },
        "errors": {
            "type": "array",
            "description": "the fields that are not valid",
            "items": {
                "type": "object",
                "required": ["loc", "msg"],
                "properties": {
                    "loc": {
                        "type": "array",
                        "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "description": "path of the field, starting with `body`, `query`, `path` or `header`",
                    },
                    "msg": {"type": "string", "description": "what is wrong with the field"},
                },
            },
        },
    },
}
_COMMON_PROBLEMS = {
    "400": "The body is not valid JSON, or the path is not valid",
    "401": "The key is missing, unknown, expired or revoked",
    "403": "The key does not have the scope of this route, or the project lacks a grant: `code` says which",
    "404": "There is no such record in the key's project",
    "409": "Conflict with the state of the record, or with an earlier request: `code` says which",
    "413": "The body or the result is too large",
    "422": "The request is not valid; `errors` names the fields",
    "429": "A quota or the request rate of the project is used up; retry after Retry-After seconds",
    "500": "An unexpected error, which was logged under the request id",
    "503": "Temporarily overloaded; retry in a few seconds",
}
_SUCCESS = {"200": "OK", "201": "Created", "202": "Accepted"}
_LOCATION = {"location": {"required": True, "schema": {"type": "string"}}}
_WARNINGS = {
    "x-warnings": {
        "description": "what the record of a queued export has in `warnings`: a list of texts in JSON; absent if none",
        "schema": {"type": "string"},
    }
}
_REDIRECT: Schema = {"description": "Redirect to a presigned URL, valid for 300 s", "headers": _LOCATION}
_FILE: Schema = {
    "description": "The file",
    "headers": {"content-disposition": {"required": True, "schema": {"type": "string"}}, **_WARNINGS},
    "content": {
        "text/csv": {"schema": {"type": "string", "description": "one line for each row"}},
        "application/x-ndjson": {"schema": {"type": "string", "description": "one JSON object for each row, in lines"}},
        "application/gzip": {"schema": {"type": "string", "description": "CSV or JSON lines, compressed"}},
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": {
            "schema": {"type": "string", "description": "an Excel workbook"}
        },
        "application/vnd.apache.parquet": {"schema": {"type": "string", "description": "a Parquet file"}},
        "application/zip": {
            "schema": {"type": "string", "description": "several files, if there are more than rows_per_file rows"}
        },
    },
}
_UPSTREAM = {"502": "The source failed, or its answer cannot be used", "504": "The source did not answer in time"}
_SYNC = {"200": _FILE, "303": _REDIRECT | {"headers": _LOCATION | _WARNINGS}}
_ANSWERS: dict[tuple[str, str], Schema] = {
    ("post", "/v1/files"): {
        "201": _json("Without source_url: where to upload the content", "UploadAnswer", "MultipartAnswer"),
        "202": _json("With source_url: the request that downloads the file", "IngestAnswer"),
    },
    ("post", "/v1/files/{file_id}/complete"): {
        "200": _json("Verified: the file is `ready`", "FileAnswer"),
        "202": _json("Being verified: the file is `verifying`", "FileAnswer"),
    },
    ("get", "/v1/download/async"): {"302": _REDIRECT},
    **{(method, f"/v1/download/sync{tail}"): _SYNC for method in ("get", "post") for tail in ("", "/multiple")},
}
_PROBLEMS: dict[str, dict[str, str]] = {
    "/v1/download/url": {"410": "The file has expired"},
    "/v1/download/async": {"410": "The file has expired"},
    "/v1/download/sync": _UPSTREAM,
    "/v1/download/sync/multiple": _UPSTREAM,
    "/v1/task/sample": _UPSTREAM,
    "/v1/subscriptions/preview": _UPSTREAM,
}
# GET routes that take the fields of a body as query parameters.
BODIES_IN_QUERY = {"/v1/download/sync": "SyncBody", "/v1/download/sync/multiple": "SyncMultipleBody"}
_PARAMETER = re.compile(r"<(\w+)>")
_PLAIN_TYPES = {"string", "integer", "number", "boolean", "null"}
_IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a unique text of your choice: for 24 hours, a repeat with the same key and body returns the first "
    "answer and creates nothing",
    "schema": {"type": "string", "maxLength": 255},
}


class Api(ScopedResolver):
    """The resolver, with a complete OpenAPI schema."""

    def __init__(self) -> None:
        super().__init__(enable_validation=True, response_validation_error_http_code=500)

    def get_openapi_schema(self, **options: Any) -> OpenAPI:
        from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

        generated = super().get_openapi_schema(**options).model_dump(mode="json", by_alias=True, exclude_none=True)
        return OpenAPI.model_validate(_completed(generated, self))


# The document that `make build` writes into the built layer. It is in no other place, so it cannot be out of date.
BUILT = Path(__file__).with_name("openapi.json")


def document(api: Api) -> str:
    """Returns the OpenAPI document as JSON.

    That is the document of the build. If there is none, it is made now, which takes longer than most requests.
    """
    if BUILT.is_file():
        return BUILT.read_text("utf-8")
    return json.dumps(contract(api), separators=(",", ":"))


def contract(api: Api) -> Schema:
    """The OpenAPI document with its texts, examples and webhooks."""
    # Imported here, because no other request needs it and it reads files.
    from tidegate.web.reference.document import described

    return described(json.loads(api.get_openapi_json_schema(title=TITLE, version=VERSION)))


def _completed(schema: Schema, resolver: Api) -> Schema:
    schema["info"]["license"] = {"name": "MIT", "identifier": "MIT"}
    # Relative, because the API may be under a stage, a folder or a custom domain.
    schema["servers"] = [{"url": "."}]
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError", "ResponseValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = _PROBLEM
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    idempotent = set(_idempotent_routes(resolver))
    scopes = {
        (method.lower(), _PARAMETER.sub(r"{\1}", rule)): scope for (method, rule), scope in resolver.scopes.items()
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _answers(method, path, operation["responses"])
            scope = scopes[method, path]
            operation["security"] = [] if scope == "open" else [{"key": [scope]}]
            if (method, path) in idempotent:
                operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
    for path, model in BODIES_IN_QUERY.items():
        schema["paths"][path]["get"]["parameters"] = list(_as_query(schemas[model]))
    return schema


def _answers(method: str, path: str, found: Schema) -> Schema:
    answers = {
        status: {**answer, "description": _SUCCESS.get(status, answer["description"])}
        for status, answer in found.items()
        if status not in ("422", "500")
    }
    if "204" in answers:
        answers["204"] = {"description": "Done; the answer has no body"}
    problems = {"500": _COMMON_PROBLEMS["500"]}
    if path.startswith("/v1/"):
        problems = _COMMON_PROBLEMS | _PROBLEMS.get(path, {})
    return answers | _ANSWERS.get((method, path), {}) | {status: _problem(text) for status, text in problems.items()}


def _problem(text: str) -> Schema:
    return {"description": text, "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _idempotent_routes(resolver: APIGatewayHttpResolver) -> Iterator[tuple[str, str]]:
    for route in [*resolver._static_routes, *resolver._dynamic_routes]:
        if any(middleware.__name__.startswith("idempotent") for middleware in route.middlewares):
            yield route.method.lower(), route.openapi_path


def _as_query(model: Schema) -> Iterator[Schema]:
    """Yields the fields of a body as query parameters. An object or a list becomes a string that contains JSON."""
    for name, field in model["properties"].items():
        types = {option.get("type") for option in field.get("anyOf", [field])}
        schema = {key: value for key, value in field.items() if key != "description"}
        parameter = {"name": name, "in": "query", "schema": schema if types <= _PLAIN_TYPES else {"type": "string"}}
        yield parameter | ({"description": field["description"]} if "description" in field else {})
