"""What `make run` prints once the local cloud is up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from pytest_httpserver import HTTPServer

from local.__main__ import show
from local.cloud import Up


def up_at(server: HTTPServer) -> Up:
    url = server.url_for("").rstrip("/")
    return cast(Up, SimpleNamespace(cloud=SimpleNamespace(api_url=url, console_url=f"{url}/", admin_key="tga_k")))


def test_console_address_signs_in_by_itself(httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    httpserver.expect_request("/v1/sign-in-tickets", "POST").respond_with_json({"ticket": "tg_once"}, 201)

    show(up_at(httpserver))

    assert f"console   {httpserver.url_for('/')}#ticket=tg_once\n" in capsys.readouterr().out


def test_addresses_are_shown_though_the_answer_with_the_ticket_was_lost(
    httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = {"code": "already_created", "detail": "made before", "status": 409}
    httpserver.expect_request("/v1/sign-in-tickets", "POST").respond_with_json(problem, 409)

    show(up_at(httpserver))

    printed = capsys.readouterr().out
    assert f"console   {httpserver.url_for('/')} (sign in with the admin key)\n" in printed
    assert "admin key tga_k\n" in printed
