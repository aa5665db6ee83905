"""The client's wheel, installed into an empty environment, against the deployed stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.client_wheel import build
from tests.support.deployed import Deployed, DeployedProject
from tests.support.ingest.sources import FileSource, Hosted, file_source

PAGE = Path(__file__).resolve().parents[3] / "layers" / "client" / "README.md"
EXAMPLES = re.findall(r"```python(?: stack)?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FEED = b'<rss><channel><item><enclosure url="/one.mp3"/></item><item><enclosure url="/x.txt"/></item></channel></rss>'


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the `bin` folder of an environment with the wheel only."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    uv = Path(sys.executable).parent / "uv"
    python = folder / "venv" / "bin" / "python"
    install = [str(uv), "pip", "install", "-q", "--python", str(python), str(build(folder))]
    subprocess.run(install, check=True, capture_output=True)
    return python.parent


@pytest.fixture
def source() -> Iterator[FileSource]:
    with file_source() as new_source:
        new_source.files |= {"/feed": Hosted(FEED, content_type="text/xml"), "/tide.bin": Hosted(b"tide")}
        yield new_source


def run(program: Path, *words: str, home: Path, text: str | None = None) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        [program, *words], input=text, capture_output=True, text=True, env=environment, cwd=home, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_run_with_the_wheel_alone(
    installed: Path, deployed: Deployed, project: DeployedProject, source: FileSource, tmp_path: Path
) -> None:
    variables = {"api_url": deployed.api_url, "key": project.key}
    variables |= {"source_url": source.url("/tide.bin"), "feed_url": source.url("/feed")}
    script = tmp_path / "examples.py"
    names = [f"{name} = {value!r}" for name, value in variables.items()]
    script.write_text("\n".join([*names, *EXAMPLES, "import sys", "print('boto3' in sys.modules)"]))

    printed = run(installed / "python", str(script), home=tmp_path).splitlines()

    assert len(EXAMPLES) == 7
    assert "True 4" in printed
    assert "rss ['/pod/one.mp3']" in printed
    assert "/in/moon.txt pending" in printed
    assert printed[-1] == "False"


def test_installed_command_logs_in_and_ingests(
    installed: Path, deployed: Deployed, project: DeployedProject, source: FileSource, tmp_path: Path
) -> None:
    tidegate = installed / "tidegate"
    assert "distribute" in run(tidegate, "--help", home=tmp_path)
    run(tidegate, "login", "--api-url", deployed.api_url, "--key", "-", home=tmp_path, text=project.key)
    place = ("--biz-id", "1", "--app-id", "1", "--file-path", "/in/tide.bin")
    run(tidegate, "ingest", source.url("/tide.bin"), *place, "--watch", "--timeout", "120", home=tmp_path)

    listed = run(tidegate, "file", "list", "--fields", "file_path,state", home=tmp_path)
    assert "/in/tide.bin  ready" in listed
    run(tidegate, "logout", home=tmp_path)
