"""The `tidegate` command as people run it: processes, against the deployed stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployed import Deployed

pytestmark = pytest.mark.e2e

NAME = ["--biz-id", "2", "--app-id", "3"]


@dataclass
class Shell:
    """A user's shell: its own home, logged in or not."""

    home: Path
    api_url: str

    def start(self, *words: str, key: str | None = None) -> subprocess.Popen[str]:
        environment = os.environ | {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        if key:
            environment |= {"TIDEGATE_API_URL": self.api_url, "TIDEGATE_KEY": key}
        command = [sys.executable, "-m", "tidegate_client", *words]
        return subprocess.Popen(
            command, cwd=self.home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str, expect: int = 0, key: str | None = None) -> str:
        process = self.start(*words, key=key)
        out, err = process.communicate(timeout=120)
        assert process.returncode == expect, f"{words}: {process.returncode}\n{out}\n{err}"
        return out

    def json(self, *words: str, key: str | None = None) -> Any:
        return json.loads(self.run(*words, "--json", key=key))


@pytest.fixture
def shell(deployed: Deployed, tmp_path: Path) -> Shell:
    return Shell(tmp_path, deployed.api_url)


@pytest.fixture
def project_id(shell: Shell, deployed: Deployed) -> str:
    """An admin logs in, makes a project and its key; then its user logs in."""
    shell.run("login", "--api-url", deployed.api_url, "--key", deployed.admin_key)
    made = shell.json("project", "create", f"cli-{shell.home.name}"[:60], "--allow-private-urls")
    key = shell.json("key", "create", made["project_id"], "--scope", "read", "--scope", "write")
    shell.run("login", "--api-url", deployed.api_url, "--key", key["key"])
    return str(made["project_id"])


@pytest.fixture
def stored(shell: Shell, project_id: str) -> tuple[dict[str, Any], bytes]:
    content = os.urandom(20 * 1024 * 1024)
    (shell.home / "发布.bin").write_bytes(content)
    record = shell.json("file", "put", "发布.bin", *NAME, "--file-path", "/releases/发布.bin")
    return record, content


def test_a_file_of_20_mb_goes_up_and_comes_back(shell: Shell, stored: tuple[dict[str, Any], bytes]) -> None:
    record, content = stored
    assert (record["state"], record["size"]) == ("ready", len(content))

    shell.run("file", "get", record["file_id"], "-o", "back.bin")

    assert (shell.home / "back.bin").read_bytes() == content
    assert [one["file_id"] for one in shell.json("file", "list", *NAME)["items"]] == [record["file_id"]]
    assert shell.json("file", "show", record["file_id"])["file_name"] == "发布.bin"


def test_exit_codes_over_the_real_api(shell: Shell, project_id: str) -> None:
    shell.run("file", "show", "file-none", expect=4)
    shell.run("project", "list", expect=3)
    shell.run("file", "show", "x", expect=3, key="tg_unknown")
    shell.run("file", "list", "--limit", "1000", expect=2)
    shell.run("file", "ingest", "ftp://x.example/f", *NAME, "--file-path", "/../x", expect=2)
