"""What is open to everyone: health, the contract, its reading page."""

from __future__ import annotations

import json
from typing import Any, cast

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from tidegate.adapters.dynamo import keys
from tidegate.bootstrap import app
from tidegate.web.routing import Router

router = Router()


@router.get("/healthz", tags=["System"], summary="Is the table there?")
def health() -> dict[str, str]:
    app().table.get(keys.project("healthz"))
    return {"status": "ok"}


@router.get("/openapi.json", include_in_schema=False)
def contract() -> Response[str]:
    resolver = cast(APIGatewayHttpResolver, router.api_resolver)
    schema = json.loads(resolver.get_openapi_json_schema(title="Tidegate", version="1.0.0"))
    return Response(status_code=200, content_type="application/json", body=json.dumps(_with_problems(schema)))


def _with_problems(schema: dict[str, Any]) -> dict[str, Any]:
    """Every route may answer a problem; Powertools documents only its own 422."""
    problem = {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string"},
            "errors": {"type": "array", "items": {"type": "object"}},
        },
    }
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = problem
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answers = {
        "400": "Broken JSON",
        "401": "No valid key",
        "403": "Scope missing",
        "404": "Not found",
        "409": "Conflict",
    }
    answers |= {"413": "Too large", "422": "Not valid", "503": "Try again"}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            closed = path.startswith("/v1/")
            if closed:
                operation["security"] = [{"key": []}]
            operation["responses"].pop("422", None)
            for status, text in answers.items() if closed else ():
                operation["responses"][status] = {"description": text, "content": content}
    return schema
