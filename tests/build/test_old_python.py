"""The client on the oldest Python that hosts have: RHEL 9 and Amazon Linux 2023 have 3.9, Ubuntu 22.04 has 3.10."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.deployed import interpreter
from tests.support import second_try
from tests.support.swarm.fleet import Behaviour, SwarmFleet
from tests.support.swarm.lab import CountingOrigin, random_content

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).parent / "uv")
TOOLS = ("pytest>=8", "pytest-httpserver>=1.1", "pytest-timeout", "pytest-xdist", "time-machine", "websockets>=13")
# Those that show a file on its way, a release, and the agent as a process; the others hardly use other parts of Python.
SUITES = ("test_agent.py", "test_trees.py", "test_releases.py", "test_process.py", "test_update.py", "test_push.py")
IMPORTS = """
import importlib, pkgutil, typing, tidegate_client
from tidegate_client import models
for found in pkgutil.walk_packages(tidegate_client.__path__, "tidegate_client."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
for kind in vars(models).values():
    if isinstance(kind, type) and issubclass(kind, models.Model):
        typing.get_type_hints(kind)
print(len(models.Job({"counts": {"failed": 3}}).counts), models.Job({"counts": {"failed": 3}}).counts.failed)
"""


@pytest.fixture(scope="module", params=["3.9", "3.10"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment of that version with the client and what its tests need."""
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"Python {request.param} is not installed")
    home = tmp_path_factory.mktemp(f"python-{request.param}")
    made = str(home / "bin" / "python")
    subprocess.run([UV, "venv", "-q", "--clear", "--python", found, str(home)], check=True)
    install = [UV, "pip", "install", "-q", "--python", made, f"{ROOT / 'layers/client'}[swarm]", *TOOLS]
    subprocess.run(install, check=True)
    return made


def test_every_module_of_the_client_can_be_imported(python: str, tmp_path: Path) -> None:
    done = subprocess.run([python, "-c", IMPORTS], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("1 3", "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_agent_passes_its_own_tests(python: str) -> None:
    if not python.split("python-")[1].startswith("3.9"):
        pytest.skip("once, on the oldest")
    path = os.pathsep.join(str(ROOT / part) for part in (".", "layers/client"))
    words = [python, "-m", "pytest", "-q", "--confcutdir=tests/unit/client"]
    suites = [f"tests/unit/client/agent/{name}" for name in SUITES]
    how = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": path}, "capture_output": True, "text": True}

    done = second_try.twice(words, ["-n", "4"], suites, "tests-old-python", ROOT / ".local/second-tries", **how)

    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
def test_swarm_of_old_and_new_pythons_gets_the_file(python: str, tmp_path: Path) -> None:
    origin = CountingOrigin(random_content(16 << 20))
    hosts = [Behaviour() for _ in range(6)]
    pythons = (python, sys.executable)
    # Slow peers are another test's subject: on a busy machine all are.
    fleet = SwarmFleet(tmp_path, origin, hosts, rate=4e6, spread=1.0, processes=2, pythons=pythons, patience=60.0)
    try:
        with fleet.started():
            run = fleet.wait(100)
    finally:
        origin.close()

    assert fleet.wrong_files() == []
    assert len(run.results) == 6
    # Each host got bytes from others, whichever Python they have.
    assert origin.egress <= 2.5
    assert all(result["figures"]["peer_bytes"] > 0 for result in run.results.values())
