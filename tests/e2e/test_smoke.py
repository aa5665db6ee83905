"""`tidegate doctor` tries each part of a stack once, and reports what failed."""

from __future__ import annotations

import json

import pytest

from tests.support.deployed import Deployed
from tidegate_client.cli import main
from tidegate_client.client import Client


def test_doctor_tries_everything_and_cleans_up(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--api-url", deployed.api_url, "--key", deployed.admin_key, "--json"]
    for _ in range(2):
        code = main(words)

        findings = json.loads(capsys.readouterr().out)["items"]
        assert [one for one in findings if one["result"] != "ok"] == []
        assert code == 0
        assert [one["check"] for one in findings] == [
            "reach",
            "project",
            "grants",
            "quotas",
            "upload",
            "parts",
            "request",
            "export",
            "websocket",
            "distribute",
            "clean_up",
        ]
    admin = Client(deployed.api_url, deployed.admin_key)
    [project] = [one for one in admin.projects.list() if one.name.startswith("doctor")]
    assert {key.state for key in admin.keys.list(project.project_id)} == {"revoked"}
    user = Client(deployed.api_url, admin.keys.create(project.project_id, ["read"]).key)
    assert list(user.agents.list()) == []
    assert {file.file_name for file in user.files.list()} == {"one.bin"}, "a Job may still need it"


def test_doctor_stops_at_the_first_failed_check(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--api-url", deployed.api_url, "--key", "tg_wrong", "--json"]) == 1

    findings = json.loads(capsys.readouterr().out)["items"]
    assert [(finding["check"], finding["result"]) for finding in findings][:2] == [
        ("reach", "ok"),
        ("project", "FAILED"),
    ]
