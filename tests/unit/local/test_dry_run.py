"""`DRY_RUN=yes make deploy`: what it runs, and that it deploys nothing."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from local import preflight, sam
from local.progress import Failure


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.credentials: object | None = None
        self.valid = True
        monkeypatch.setenv("DRY_RUN", "yes")
        monkeypatch.setattr(sam, "build", lambda: self.calls.append("build"))
        monkeypatch.setattr(subprocess, "run", self.run)
        session = SimpleNamespace(get_credentials=lambda: self.credentials, client=None, region_name="us-east-1")
        monkeypatch.setattr("boto3.Session", lambda: session)
        monkeypatch.setattr(preflight, "check", lambda *_: self.calls.append("account"))

    def run(self, command: list[Any], **_: Any) -> Any:
        self.calls.append(str(command[1]))
        return subprocess.CompletedProcess(command, 0 if self.valid else 1, "E3001 no such type", "")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_dry_run_builds_validates_and_deploys_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert sam.deploy() == 0
    assert world.calls == ["build", "validate"]
    assert "no AWS credentials here" in capsys.readouterr().out


def test_dry_run_with_credentials_checks_the_account(world: World) -> None:
    world.credentials = object()
    sam.deploy()
    assert world.calls == ["build", "validate", "account"]


def test_dry_run_of_an_invalid_template_says_what_is_wrong(world: World) -> None:
    world.valid = False
    with pytest.raises(Failure, match="E3001 no such type"):
        sam.deploy()
