"""The client's wheel, installed into an empty environment as users do it."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tidegate_client.agent.update import create_key, open_release, read_keys, sign

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "local.client_wheel", str(out)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True, text=True)
    (built,) = out.glob("tidegate_client-*.whl")
    return built


def test_wheel_holds_the_client_and_nothing_of_the_server(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()

    assert {name.split("/")[0].split("-")[0] for name in names} == {"tidegate_client"}
    assert "tidegate_client/py.typed" in names
    requirements = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    always = [line for line in requirements if "extra ==" not in line]
    assert sorted(line.split()[1].split("<")[0].split(">")[0] for line in always) == [
        "async-timeout",
        "urllib3",
        "websocket-client",
    ]
    assert "Requires-Python: >=3.9" in metadata
    extras = sorted(set(requirements) - set(always))
    assert [line.rpartition("extra == ")[2].strip("'\"") for line in extras] == ["swarm", "update"]
    assert all(line.startswith("Requires-Dist: cryptography") for line in extras)


def test_wheel_can_be_signed_as_a_release_of_the_agent(wheel: Path, tmp_path: Path) -> None:
    public = create_key(tmp_path / "release.key")

    version, signed = sign(wheel.read_bytes(), (tmp_path / "release.key").read_bytes())

    assert open_release(signed, read_keys(public)).version == version


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True)

    def run(*command: str) -> str:
        done = subprocess.run(
            [python.parent / command[0], *command[1:]], check=True, capture_output=True, text=True, cwd=tmp_path
        )
        return done.stdout

    assert "distribute" in run("tidegate", "--help")
    assert run("tidegate", "--version").strip() == "tidegate 1.1.0"
    assert "_tidegate" in run("tidegate", "completion", "bash")
    script = (
        "import sys, tidegate_client as t; help(t.Client); print('boto3' in sys.modules, 'tidegate' in sys.modules)"
    )
    assert "subscriptions" in run("python", "-c", script)
    assert run("python", "-c", script).strip().endswith("False False")
    # Without the extra `swarm` the agent can be imported, and says why it has no peer port.
    reason = "import tidegate_client.agent.daemon; from tidegate_client.swarm.port import *; print(no_port_reason())"
    assert "No module named 'cryptography'" in run("python", "-c", reason)
