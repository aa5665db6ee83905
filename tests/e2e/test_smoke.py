"""`tidegate doctor` tries each part of a stack once, and reports what failed."""

from __future__ import annotations

import json

import pytest

from tests.support.deployed import Deployed
from tidegate_client.cli import main


def test_doctor_tries_everything_and_cleans_up(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--api-url", deployed.api_url, "--key", deployed.admin_key, "--json"])

    findings = json.loads(capsys.readouterr().out)["items"]
    assert [(finding["check"], finding["result"]) for finding in findings if finding["result"] != "ok"] == [], findings
    assert [finding["check"] for finding in findings] == [
        "reach",
        "project",
        "upload",
        "parts",
        "request",
        "export",
        "websocket",
        "distribute",
        "clean_up",
    ]
    assert code == 0


def test_doctor_stops_at_the_first_failed_check(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--api-url", deployed.api_url, "--key", "tg_wrong", "--json"]) == 1

    findings = json.loads(capsys.readouterr().out)["items"]
    assert [(finding["check"], finding["result"]) for finding in findings][:2] == [
        ("reach", "ok"),
        ("project", "FAILED"),
    ]
