"""`tidegate doctor` does one of everything against a stack, and says what failed."""

from __future__ import annotations

import json

import pytest

from tests.support.deployed import Deployed
from tidegate_client.cli import main


def test_doctor_tries_everything_and_cleans_up(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--api-url", deployed.api_url, "--key", deployed.admin_key, "--json"])

    findings = json.loads(capsys.readouterr().out)["items"]
    assert [(one["check"], one["result"]) for one in findings if one["result"] != "ok"] == [], findings
    assert [one["check"] for one in findings] == [
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


def test_doctor_stops_at_what_does_not_work(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--api-url", deployed.api_url, "--key", "tg_wrong", "--json"]) == 1

    findings = json.loads(capsys.readouterr().out)["items"]
    assert [(one["check"], one["result"]) for one in findings][:2] == [("reach", "ok"), ("project", "FAILED")]
