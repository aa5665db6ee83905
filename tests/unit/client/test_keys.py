"""A key is shown once: what the client does if that answer is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tidegate_client.client import Client
from tidegate_client.config import host_claim
from tidegate_client.errors import AlreadyCreated

LOST = {"code": "already_created", "status": 409, "detail": "made before", "key_id": "k-lost"}
MADE = {"key_id": "k-2", "key": "tg_k-2_x"}


@pytest.fixture
def client(httpserver: HTTPServer) -> Iterator[Client]:
    with Client(httpserver.url_for("").rstrip("/"), "k-1", attempts=3, backoff=0.01) as made:
        yield made


def test_lost_answer_of_a_new_key_revokes_it_and_retries(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_ordered_request("/v1/projects/p/keys", "POST").respond_with_json(LOST, 409)
    httpserver.expect_ordered_request("/v1/keys/k-lost", "DELETE").respond_with_data(status=204)
    httpserver.expect_ordered_request("/v1/projects/p/keys", "POST").respond_with_json(MADE, 201)

    assert client.keys.create("p", ["read"]) == MADE

    httpserver.check_assertions()
    first, _, second = (request for request, _ in httpserver.log)
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_lost_answer_of_a_rotation_rotates_the_new_key(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_ordered_request("/v1/keys/k/rotate", "POST").respond_with_json(LOST, 409)
    httpserver.expect_ordered_request("/v1/keys/k-lost/rotate", "POST", json={"overlap_s": 0}).respond_with_json(
        MADE, 201
    )

    assert client.keys.rotate("k", overlap_s=60) == MADE
    httpserver.check_assertions()


def test_lost_answer_of_a_callback_secret_is_an_error(httpserver: HTTPServer, client: Client) -> None:
    problem = {"code": "already_created", "detail": "made before", "project_id": "p"}
    httpserver.expect_request("/v1/projects/p/callback-secrets", "POST").respond_with_json(problem, 409)

    with pytest.raises(AlreadyCreated) as refused:
        client.projects.rotate_callback_secret("p")

    assert refused.value.key_id is None


def test_host_enrols_at_an_older_api_that_knows_no_claim(httpserver: HTTPServer, client: Client) -> None:
    problem = {"code": "invalid", "detail": "no", "errors": [{"loc": ["body", "claim"], "msg": "unknown"}]}
    httpserver.expect_ordered_request("/v1/agents/enrol", method="POST").respond_with_json(problem, status=422)
    given = {"token": "t", "agent_id": "h-1"}
    made = {"project_id": "p", "agent_id": "h-1", "key_id": "k", "key": "tg_k_x"}
    httpserver.expect_ordered_request("/v1/agents/enrol", method="POST", json=given).respond_with_json(made)

    assert client.agents.enrol("t", "h-1")["key"] == "tg_k_x"


def test_claim_of_a_host_is_kept_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    claim = host_claim(environ)

    assert host_claim(environ) == claim
    (file,) = tmp_path.rglob("enrolment-claim")
    assert file.stat().st_mode & 0o777 == 0o600
