"""Adds descriptions, examples and webhooks to the OpenAPI document. Imported only when the document is generated.

The texts of fields are in the code, at the fields. The texts of operations are in operations.toml. examples.json has
calls in the order of a tour, each with its answer; tests/integration/web/test_reference.py makes these calls again.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.web.reference.webhooks import CALLBACKS, SCHEMAS, WEBHOOKS

Schema = dict[str, Any]
HERE = Path(__file__).parent
# Pydantic's name of a model whose class name is in two modules. It is published with the name of the capability.
_QUALIFIED = re.compile(r"tidegate__web__(\w+?)__(\w+)")
_CAPABILITIES = {"agents": "distribution", "submits": "distribution"}
_JSON = "application/json"
_PROBLEM = "application/problem+json"


def described(contract: Schema) -> Schema:
    """The document with its descriptions, examples and webhooks."""
    contract = json.loads(_QUALIFIED.sub(_published_name, json.dumps(contract)))
    for name, schema in contract["components"]["schemas"].items():
        # Generators name a class by the title, so no two models may have the same.
        schema["title"] = name
    operations = _read("operations.toml")
    contract["info"]["description"] = operations["info"]["description"]
    contract["components"]["schemas"] |= SCHEMAS
    _describe_fields(contract["components"]["schemas"])
    for method, path, operation in operations_of(contract):
        text = operations["operations"].get(f"{method.upper()} {path}")
        if text:
            operation.setdefault("description", text)
        _describe_parameters(path, operation, operations["parameters"])
    for name, found in CALLBACKS.items():
        _add_callbacks(contract, name, found)
    _add_examples(contract, examples())
    _share_problems(contract)
    contract["webhooks"] = WEBHOOKS
    contract["tags"] = [{"name": name, "description": text} for name, text in operations["tags"].items()]
    contract["paths"] = _in_tour_order(contract["paths"], list(operations["operations"]))
    return contract


def _published_name(found: re.Match[str]) -> str:
    return _CAPABILITIES.get(found[1], found[1]).title() + found[2]


def operations_of(contract: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in contract["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def examples() -> list[Schema]:
    """Example calls, in an order in which they can be made one after another."""
    found: list[Schema] = json.loads((HERE / "examples.json").read_text("utf-8"))
    return found


def _read(name: str) -> Schema:
    return tomllib.loads((HERE / name).read_text("utf-8"))


def _describe_parameters(path: str, operation: Schema, texts: Schema) -> None:
    for parameter in operation.get("parameters", ()):
        text = texts.get(path, {}).get(parameter["name"]) or texts.get(parameter["name"])
        if text:
            parameter.setdefault("description", text)


def _describe_fields(schemas: Schema) -> None:
    """Moves the description of a field that may be null from `anyOf` to the field itself.

    Also describes items of lists.
    """
    for name, field in (found for schema in schemas.values() for found in _fields_of(schema)):
        for option in _options(field):
            if option.get("items") == {}:
                option["items"] = {"description": "any JSON value"}
        text = _text_of_option(field) or ("the entries of this page" if name == "items" else None)
        if text:
            field.setdefault("description", text)
        for option in field.get("anyOf", ()):
            option.pop("description", None)


def _options(field: Schema) -> Iterator[Schema]:
    """Yields the schema itself and all options in its `anyOf`. An option may have options, which are included."""
    yield field
    for option in field.get("anyOf", ()):
        yield from _options(option)


def _text_of_option(field: Schema) -> str | None:
    """Returns the description of a field that may be null. Pydantic puts this description inside `anyOf`."""
    return next((option["description"] for option in field.get("anyOf", ()) if "description" in option), None)


def _fields_of(schema: Any) -> Iterator[tuple[str, Schema]]:
    if isinstance(schema, list):
        for entry in schema:
            yield from _fields_of(entry)
    elif isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties.items()
            yield from (found for field in properties.values() for found in _fields_of(field))
        for name in ("items", "anyOf", "oneOf", "additionalProperties"):
            yield from _fields_of(schema.get(name))


def _share_problems(contract: Schema) -> None:
    """Replaces equal problem answers by references, because every route has the same ones."""
    shared = contract["components"].setdefault("responses", {})
    for _, _, operation in operations_of(contract):
        for status, answer in operation["responses"].items():
            if _PROBLEM in answer.get("content", {}):
                name = f"Problem{status}"
                if shared.setdefault(name, answer) == answer:
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}


def _add_callbacks(contract: Schema, name: str, found: dict[str, tuple[str, str]]) -> None:
    method, _, path = name.partition(" ")
    operation = contract["paths"].get(path, {}).get(method.lower())
    if operation is not None:
        operation["callbacks"] = {key: {where: WEBHOOKS[kind]} for key, (where, kind) in found.items()}


def _add_examples(contract: Schema, calls: list[Schema]) -> None:
    for call in calls:
        operation = contract["paths"].get(call["path"], {}).get(call["method"].lower())
        if operation is None:
            continue
        if "request" in call and "requestBody" in operation:
            operation["requestBody"]["content"][_JSON].setdefault("example", call["request"])
        for parameter in operation.get("parameters", ()):
            values = call.get("in_path" if parameter["in"] == "path" else parameter["in"], {})
            if parameter["name"] in values:
                parameter.setdefault("example", values[parameter["name"]])
        answer = operation["responses"].get(str(call["status"]), {})
        if "answer" in call and _JSON in answer.get("content", {}):
            answer["content"][_JSON].setdefault("example", call["answer"])


def _in_tour_order(paths: Schema, tour: list[str]) -> Schema:
    """Returns the paths and their methods in the order of operations.toml."""
    positions = {name: number for number, name in enumerate(tour)}

    def position(path: str, method: str) -> int:
        return positions.get(f"{method.upper()} {path}", len(positions))

    ordered = {
        path: dict(sorted(methods.items(), key=lambda entry: position(path, entry[0])))
        for path, methods in paths.items()
    }
    return dict(sorted(ordered.items(), key=lambda entry: min(position(entry[0], method) for method in entry[1])))
