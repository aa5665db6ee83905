"""The API reference: everything is described, and every example is the answer of a real call."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from tests.support.tour.recorder import shape
from tests.support.tour.steps import tour
from tidegate.web.api import build_api
from tidegate.web.openapi import contract
from tidegate.web.reference import document

UPDATE_EXAMPLES = "the answer changed: check it, then run python -m tests.support.tour"


@cache
def published() -> dict[str, Any]:
    return contract(build_api())


@cache
def tour_calls() -> list[dict[str, Any]]:
    return tour()


def name_of(call: dict[str, Any]) -> str:
    return f"{call['method']} {call['path']} {call['status']}"


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for method, path, operation in document.operations_of(published()):
        yield f"{method.upper()} {path}", operation


def test_every_operation_has_a_description() -> None:
    missing = [name for name, operation in operations() if not operation.get("description")]
    assert not missing, f"describe them in web/reference/operations.toml: {missing}"


def test_every_parameter_has_a_description() -> None:
    missing = [
        f"{name}: {parameter['name']}"
        for name, operation in operations()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert not missing, f"describe them in web/reference/operations.toml, [parameters]: {missing}"


def test_examples_of_requests_and_parameters_are_accepted_by_their_schemas() -> None:
    document = published()

    def faults(schema: dict[str, Any], example: Any) -> list[str]:
        rules = {**schema, "components": document["components"]}
        return [error.message[:200] for error in OAS31Validator(rules).iter_errors(example)]

    found = {}
    for name, operation in operations():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in body:
            found[name] = faults(body["schema"], body["example"])
        for parameter in operation.get("parameters", ()):
            if "example" in parameter:
                found[f"{name}: {parameter['name']}"] = faults(parameter["schema"], parameter["example"])
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_field_has_a_description() -> None:
    missing = [
        f"{model}.{name}"
        for model, schema in published()["components"]["schemas"].items()
        for name, field in document._fields_of(schema)
        if not field.get("description")
    ]
    assert not missing, f"describe them where they are declared, with F(…): {missing}"


def test_answer_schemas_have_all_fields() -> None:
    schemas, paths = published()["components"]["schemas"], published()["paths"]
    assert {"total", "success", "failed", "downloading", "timeout"} <= set(schemas["CountsAnswer"]["properties"])
    announced = paths["/v1/files"]["post"]["responses"]["201"]["content"]["application/json"]["schema"]["anyOf"]
    assert [option["$ref"].rpartition("/")[2] for option in announced] == ["UploadAnswer", "MultipartAnswer"]
    assert {"200", "202"} <= set(paths["/v1/files/{file_id}/complete"]["post"]["responses"])


def test_query_parameters_of_sync_exports_are_described_as_fields() -> None:
    """They once had the descriptions of list filters."""
    for tail in ("", "/multiple"):
        parameters = published()["paths"][f"/v1/download/sync{tail}"]["get"]["parameters"]
        wrong = [parameter["name"] for parameter in parameters if parameter["description"].startswith("only ")]
        assert wrong == []


def empty_schemas(value: Any, where: str) -> Iterator[str]:
    """Yields where the document has an empty schema or content."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if entry == {} and name in ("schema", "items", "additionalProperties", "application/json", "text/csv"):
                yield f"{where}.{name}"
            elif name not in ("example", "default"):
                yield from empty_schemas(entry, f"{where}.{name}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from empty_schemas(entry, f"{where}[{number}]")


def test_no_schema_is_empty() -> None:
    assert list(empty_schemas(published(), "")) == []


def test_every_text_describes_something_that_exists() -> None:
    known = {name for name, _ in operations()}
    gone = [name for name in document._read("operations.toml")["operations"] if name not in known]
    assert gone == []


def test_tags_and_paths_are_in_tour_order() -> None:
    named = [tag["name"] for tag in published()["tags"]]
    used = {operation["tags"][0] for _, operation in operations()}
    assert used <= set(named)
    assert named.index("Projects") < named.index("Files") < named.index("Distribution") < named.index("Operations")
    paths = list(published()["paths"])
    assert (
        paths.index("/v1/projects") < paths.index("/v1/files") < paths.index("/v1/downloads") < paths.index("/v1/audit")
    )


def test_every_operation_has_examples_of_request_and_answer() -> None:
    missing = []
    for name, operation in operations():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if body and "example" not in body and operation["requestBody"].get("required"):
            missing.append(f"{name}: request")
        expected = [
            answer
            for status, answer in operation["responses"].items()
            if status < "3" and "application/json" in answer.get("content", {})
        ]
        if expected and not any("example" in answer["content"]["application/json"] for answer in expected):
            missing.append(f"{name}: answer")
    assert not missing, f"add them to tests/support/tour/steps.py: {missing}"


def test_tour_calls_every_operation_successfully() -> None:
    called = {f"{call['method']} {call['path']}" for call in tour_calls() if call["status"] < 400}
    assert {name for name, _ in operations()} - called == set()


@pytest.mark.parametrize("number", range(len(document.examples())))
def test_example_matches_the_answer_of_the_call(number: int) -> None:
    printed = document.examples()[number]
    assert len(tour_calls()) == len(document.examples()), UPDATE_EXAMPLES
    current = tour_calls()[number]
    assert name_of(current) == name_of(printed), UPDATE_EXAMPLES
    assert shape(current.get("request")) == shape(printed.get("request")), UPDATE_EXAMPLES
    assert shape(current.get("answer")) == shape(printed.get("answer")), UPDATE_EXAMPLES


def test_examples_contain_no_secrets_and_no_local_addresses() -> None:
    text = str(document.examples())
    assert "127.0.0.1" not in text
    assert "X-Amz-Credential" not in text
    assert re.findall(r"\btg[ae]?_\w+_[A-Za-z0-9]{8,}|whsec_[A-Za-z0-9+/=]{8,}", text) == []


def test_webhooks_have_schemas_and_examples() -> None:
    webhooks = published()["webhooks"]
    assert {"source.page", "batch.item", "batch.before_create", "batch.before_run"} <= set(webhooks)
    assert {"task.completed", "task.failed", "request.finished", "batch.finished", "batch.progress"} <= set(webhooks)
    for name, methods in webhooks.items():
        for operation in methods.values():
            assert operation["description"], name
            headers = {parameter["name"] for parameter in operation["parameters"]}
            assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= headers
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            assert body is None or body["example"]
    submit = published()["paths"]["/v1/task"]["post"]["callbacks"]
    assert "{$request.body#/source_url}" in submit["page"]


def test_importing_the_api_does_not_load_the_reference() -> None:
    code = "import sys, tidegate.web.api; print([m for m in sys.modules if 'reference' in m or m == 'tomllib'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
