"""Fuzzes the deployed stack by its OpenAPI document: every answer is documented there, and none is a 5xx.

FUZZ_EXAMPLES sets the number of examples for a longer run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import assume, given
from schemathesis import CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi

from tests.support.deployed import Deployed, deployed_at
from tests.support.fuzz.any_values import examples
from tests.support.fuzz.fuzzing import Case, World, cases, world
from tidegate.web.api import build_api
from tidegate.web.openapi import contract

pytestmark = pytest.mark.e2e

PATHS = contract(build_api())["paths"]
OPERATIONS = {f"{method.upper()} {path}": found for path, methods in PATHS.items() for method, found in methods.items()}
CLOSED = [label for label, found in OPERATIONS.items() if found["security"]]
# Any text is valid in a path, so operations with path parameters only have no invalid requests.
FALLIBLE = [
    label
    for label, found in OPERATIONS.items()
    if "requestBody" in found or any(parameter["in"] != "path" for parameter in found.get("parameters", []))
]

Send = Callable[..., Any]
# API Gateway accepts 10,240 bytes of request line and headers, and rejects longer requests itself.
LONGEST_URL = 8_000
# These routes return the answer of a source, or that it failed.
ASKS_SOURCES = ("/v1/download/sync", "/v1/task/sample", "/v1/subscriptions/preview")


def error_is_a_problem_document(ctx: CheckContext, response: Response, case: Case) -> None:
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
        assert response.json()["status"] == response.status_code


CHECKS = [
    not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
    openapi.response_headers_conformance,
    error_is_a_problem_document,
]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Deploys a separate cloud: this test pauses, creates and deletes records, which would disturb other tests."""
    with deployed_at(tmp_path_factory.mktemp("fuzzed")) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def records(deployed: Deployed) -> World:
    return world(deployed)


@pytest.fixture(scope="module")
def schema(deployed: Deployed) -> Any:
    loaded = schemathesis.openapi.from_dict(deployed.http("GET", "/openapi.json").json())
    # The tests add keys or leave them out: a generated key would end every case at 401.
    loaded.config.generation.update(with_security_parameters=False)
    return loaded


@pytest.fixture(scope="module")
def send(deployed: Deployed) -> Iterator[Send]:
    with requests.Session() as session:

        def sent(case: Case, key: str | None) -> Response:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assume(len(url_of(case, deployed.api_url)) <= LONGEST_URL)
            response = case.call(deployed.api_url, session, headers, allow_redirects=False, timeout=30)
            # 502 and 504 report the failure of a source, which is not a failure of the API.
            upstream = response.status_code in (502, 504) and case.path.startswith(ASKS_SOURCES)
            case.validate_response(response, CHECKS, excluded_checks=[not_a_server_error] if upstream else [])
            return response

        yield sent


def url_of(case: Case, api_url: str) -> str:
    sent = case.as_transport_kwargs(api_url)
    return requests.Request(sent["method"], sent["url"], params=sent["params"]).prepare().url or ""


def fuzz(schema: Any, records: World, label: str, mode: GenerationMode, send: Send, count: int) -> None:
    method, _, path = label.partition(" ")

    def run(case: Case) -> None:
        send(case, records.key_for(label))

    examples(count)(given(cases(schema[path][method], mode, records))(run))()


@pytest.mark.parametrize("label", OPERATIONS)
def test_valid_request_gets_a_documented_answer(schema: Any, records: World, send: Send, label: str) -> None:
    fuzz(schema, records, label, GenerationMode.POSITIVE, send, 5)


@pytest.mark.parametrize("label", FALLIBLE)
def test_invalid_request_gets_a_documented_answer(schema: Any, records: World, send: Send, label: str) -> None:
    fuzz(schema, records, label, GenerationMode.NEGATIVE, send, 4)


@pytest.mark.parametrize("label", CLOSED)
def test_request_without_a_key_is_401(schema: Any, records: World, send: Send, label: str) -> None:
    def refused(case: Case, _: str) -> None:
        answer = send(case, None)
        # A path with control characters is refused before authentication.
        assert answer.status_code == 401 or answer.json()["code"] == "bad_path"

    fuzz(schema, records, label, GenerationMode.POSITIVE, refused, 1)
