from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deployed import Deployed
from tests.support.shell import Shell


@pytest.fixture
def shell(deployed: Deployed, tmp_path: Path) -> Shell:
    return Shell(tmp_path, deployed.api_url)


@pytest.fixture
def project_id(shell: Shell, deployed: Deployed) -> str:
    """Creates a project and a key as an admin, and logs in with that key."""
    shell.run("login", "--api-url", deployed.api_url, "--key", deployed.admin_key)
    project = shell.json("project", "create", f"cli-{shell.home.name}"[:60], "--allow-private-urls")
    key = shell.json("key", "create", project["project_id"], "--scope", "read", "--scope", "write")
    shell.run("login", "--api-url", deployed.api_url, "--key", key["key"])
    return str(project["project_id"])
