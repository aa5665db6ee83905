"""The contract with its texts and examples: what each operation, parameter and field means, and calls that were made.

Imported only when the contract is made. Texts are in fields.toml and operations.toml; examples.json holds calls in the
order of a tour, each with the answer that a test got for it (tests/integration/web/test_examples.py).
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
_QUALIFIED = re.compile(r"tidegate__web__(\w+?)__\w+?__(\w+)")
_JSON = "application/json"
_PROBLEM = "application/problem+json"


def completed(contract: Schema) -> Schema:
    contract = json.loads(_QUALIFIED.sub(lambda found: found[1].title() + found[2], json.dumps(contract)))
    operations = _read("operations.toml")
    contract["components"]["schemas"] |= SCHEMAS
    fields = _read("fields.toml")
    _describe_fields(contract["components"]["schemas"], fields)
    for method, path, operation in operations_of(contract):
        name = f"{method.upper()} {path}"
        operation.setdefault("description", operations["operations"].get(name))
        if not operation["description"]:
            del operation["description"]
        own = operations["parameters"].get(path, {})
        for parameter in operation.get("parameters", ()):
            texts = (own, operations["parameters"], fields["any"])
            text = next((found[parameter["name"]] for found in texts if parameter["name"] in found), None)
            if text:
                parameter.setdefault("description", text)
    for name, found in CALLBACKS.items():
        _add_callbacks(contract, name, found)
    _add_examples(contract, examples())
    _share_problems(contract)
    contract["webhooks"] = WEBHOOKS
    contract["tags"] = [{"name": name, "description": text} for name, text in operations["tags"].items()]
    contract["paths"] = _toured(contract["paths"], list(operations["operations"]))
    return contract


def operations_of(contract: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in contract["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def examples() -> list[Schema]:
    """Calls, in an order in which they can be made one after another."""
    found: list[Schema] = json.loads((HERE / "examples.json").read_text("utf-8"))
    return found


def _read(name: str) -> Schema:
    return tomllib.loads((HERE / name).read_text("utf-8"))


def _describe_fields(schemas: Schema, texts: Schema) -> None:
    for model, schema in schemas.items():
        own = texts.get(model, {})
        for name, field in _fields_of(schema):
            for option in (field, *field.get("anyOf", ())):
                if option.get("items") == {}:
                    option["items"] = {"description": "any JSON, as the text of the field says"}
            if "description" not in field and (text := own.get(name) or _in_options(field) or texts["any"].get(name)):
                field["description"] = text


def _in_options(field: Schema) -> str | None:
    """Of a field that may be null, Pydantic puts the text into the option that is not."""
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
    """Every route answers the same problems: told once, they are a third of the document."""
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
            given = call.get("in_path" if parameter["in"] == "path" else parameter["in"], {})
            if parameter["name"] in given:
                parameter.setdefault("example", given[parameter["name"]])
        answer = operation["responses"].get(str(call["status"]), {})
        if "answer" in call and _JSON in answer.get("content", {}):
            answer["content"][_JSON].setdefault("example", call["answer"])


def _toured(paths: Schema, tour: list[str]) -> Schema:
    """Paths and their methods in the order of operations.toml, whatever order the routers have."""
    place = {name: number for number, name in enumerate(tour)}

    def order(path: str, method: str) -> int:
        return place.get(f"{method.upper()} {path}", len(place))

    kept = {path: dict(sorted(of.items(), key=lambda entry: order(path, entry[0]))) for path, of in paths.items()}
    return dict(sorted(kept.items(), key=lambda entry: min(order(entry[0], method) for method in entry[1])))
