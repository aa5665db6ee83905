"""The examples of docs/clients.md in other languages, as printed, against the deployed stack.

Each runs where its language is installed. `make clients` runs these tests alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from openpyxl import load_workbook

from local.place import ROOT
from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.http_servers import free_port
from tests.support.shell import Shell
from tidegate.web.api import build_api
from tidegate.web.console.bundle import PROGRAMS, join_modules
from tidegate.web.console.bundle import ROOT as CONSOLE
from tidegate.web.openapi import contract
from tidegate.web.reference.document import operations_of

EXAMPLES = ROOT / "docs" / "examples"
PAGE = CONSOLE / "docs"
CONTENT = b"config of the day\n" * 100


def needs(*commands: str) -> pytest.MarkDecorator:
    missing = [command for command in commands if shutil.which(command) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


@pytest.fixture
def example(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one language's example, in which builds may write."""
    return Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))


def environment(project: DeployedProject, port: int) -> dict[str, str]:
    origin = {"origin": f"http://127.0.0.1:{port}"}
    secret = project.http("GET", "/v1/callback-secret", query=origin).json()["callback_secret"]
    own = {"TIDEGATE_API_URL": project.cloud.api_url, "TIDEGATE_KEY": project.key, "TIDEGATE_SECRET": secret}
    return os.environ | own | {"GOFLAGS": "-mod=mod", "GO111MODULE": "off"}


def run(command: list[str], place: Path, env: dict[str, str], seconds: float = 120) -> str:
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def await_server(port: int) -> None:
    """Waits until a program that was started listens: a call before that is an attempt."""

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    until(listens, bool)


@contextmanager
def agent(deployed: Deployed, project: DeployedProject, home: Path, agent_id: str) -> Iterator[Path]:
    """A real agent whose host is a folder; yields the folder that it may write."""
    (home / "srv").mkdir(parents=True)
    words = ("agent", "--agent-id", agent_id, "--root", str(home), "--allow-dir", "/srv")
    process = Shell(home, deployed.api_url).start(*words, key=project.agent_key(agent_id))
    try:
        yield home / "srv"
    finally:
        process.terminate()
        process.communicate(timeout=30)


def php_has_curl() -> bool:
    return (
        shutil.which("php") is not None
        and "curl" in subprocess.run(["php", "-m"], capture_output=True, text=True).stdout
    )


@pytest.mark.skipif(not php_has_curl(), reason="PHP with its extension curl is not installed here")
@pytest.mark.parametrize("example", ["php"], indirect=True)
def test_php_exports_its_own_pages_and_verifies_the_callback(example: Path, project: DeployedProject) -> None:
    port = free_port()
    env = environment(project, port)
    log = example / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(["php", "-S", f"127.0.0.1:{port}", "server.php"], cwd=example, env=env, stdout=out)
        try:
            await_server(port)
            said = run(["php", "export.php", f"http://127.0.0.1:{port}", "orders.xlsx"], example, env)
            sheet = load_workbook(example / "orders.xlsx").active
            _await_line(log, "verified task.completed completed")
        finally:
            server.terminate()
            server.wait(30)
    assert "completed 2431 rows" in said
    assert sheet is not None
    assert [cell.value for cell in sheet[1]][:2] == ["Order", "Paid"]
    assert [cell.value for cell in sheet[sheet.max_row]] == ["A-2431", 2431.5, "上海"]


def typescript_is_built(place: Path, env: dict[str, str]) -> None:
    words = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    installed = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"the npm packages cannot be installed here: {installed.stderr[-300:]}")
    run(["npm", "run", "types"], place, env)
    run(["npm", "run", "build"], place, env)


BUSINESSES = [
    pytest.param("php", ["php", "-S", "127.0.0.1:{port}", "business.php"], marks=needs("php")),
    pytest.param("python", [sys.executable, "business.py", "{port}"]),
    pytest.param("typescript", ["node", "build/business.js", "{port}"], marks=needs("node", "npm")),
]


@pytest.mark.parametrize(("example", "command"), BUSINESSES, indirect=["example"])
def test_business_of_the_quickstart_gets_every_item(
    example: Path, command: list[str], project: DeployedProject
) -> None:
    port, total = free_port(), 20
    env, log = environment(project, port), example / "business.log"
    if command[0] == "node":
        typescript_is_built(example, env)
    with log.open("w") as out:
        words = [word.format(port=port) for word in command]
        server = subprocess.Popen(words, cwd=example, env=env, stdout=out)
        try:
            await_server(port)
            url = f"http://127.0.0.1:{port}/process"
            biz = project.http("POST", "/v1/biz", json={"name": "points", "process_url": url}).json()["biz_id"]
            body = {"biz_id": biz, "name": "points", "total": total, "rate": 50}
            batch = project.http("POST", "/v1/batches", json=body).json()["batch_id"]
            assert project.http("POST", f"/v1/batches/{batch}/start").status == 202
            until(lambda: project.http("GET", f"/v1/batches/{batch}").json()["status"], lambda now: now == "finished")
        finally:
            server.terminate()
            server.wait(30)
    assert {line for line in log.read_text().splitlines() if line.startswith("item")} == {
        f"item {index}, attempt 1" for index in range(total)
    }


@needs("go")
@pytest.mark.parametrize("example", ["go"], indirect=True)
def test_go_distributes_a_file_and_verifies_the_callbacks(
    example: Path, project: DeployedProject, deployed: Deployed, tmp_path: Path
) -> None:
    port = free_port()
    file_id = deployed.store(project, "/conf/app.conf", CONTENT, hashlib.sha256(CONTENT).hexdigest())
    with agent(deployed, project, tmp_path / "host", "go-host") as srv:
        command = ["go", "run", "main.go", file_id, "/srv/app", "root", f"127.0.0.1:{port}", "go-host"]
        said = run(command, example, environment(project, port), seconds=240)
        assert (srv / "app" / "app.conf").read_bytes() == CONTENT
    assert "Success 1 of 1" in said
    assert "verified task.completed Success" in said


@needs("javac")
@pytest.mark.parametrize("example", ["java"], indirect=True)
def test_java_business_gets_every_item_of_its_batch(example: Path, project: DeployedProject) -> None:
    port = free_port()
    said = run(["java", "Points.java", str(port), "100"], example, environment(project, port))
    assert "finished 100 of 100" in said
    assert "verified 100 items" in said


@needs("node", "npm")
@pytest.mark.parametrize("example", ["typescript"], indirect=True)
def test_typescript_with_generated_types_submits_export_and_download(
    example: Path, project: DeployedProject, deployed: Deployed, tmp_path: Path
) -> None:
    port = free_port()
    env = environment(project, port)
    file_id = deployed.store(project, "/conf/app.conf", CONTENT, hashlib.sha256(CONTENT).hexdigest())
    shutil.copy(PAGE / "start" / PROGRAMS["typescript"], example)
    settings = json.loads((example / "tsconfig.json").read_text())
    settings["files"].append("start.ts")
    (example / "tsconfig.json").write_text(json.dumps(settings))
    typescript_is_built(example, env)
    (example / "release.tar").write_bytes(CONTENT + b"for TypeScript")
    run(["node", "build/start.js"], example, env)
    assert load_workbook(example / "report.xlsx").active is not None
    with agent(deployed, project, tmp_path / "host", "ts-host") as srv:
        said = run(["node", "build/example.js", file_id, "ts-host", str(port)], example, env)
        assert (srv / "app.conf").read_bytes() == CONTENT
    assert "export completed" in said
    assert "download Success" in said
    assert "verified task.completed task.completed" in said


RUNS = {
    "curl": (("bash", "curl"), ["bash", "-e", "start.sh"]),
    "python": (("python",), [sys.executable, "start.py.txt"]),
    "php": (("php",), ["sh", "-c", "tail -n +2 start.php > run.php && php run.php"]),
    "go": (("go",), ["go", "run", "start.go"]),
    "java": (("javac",), ["java", "Start.java"]),
}


@pytest.mark.parametrize("language", RUNS)
def test_program_of_the_start_page_runs_as_it_is(
    language: str, project: DeployedProject, tmp_path: Path, deployed: Deployed
) -> None:
    commands, command = RUNS[language]
    if missing := [name for name in commands if shutil.which(name) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    shutil.copy(PAGE / "start" / PROGRAMS[language], tmp_path)
    (tmp_path / "release.tar").write_bytes(CONTENT + language.encode())
    run(command, tmp_path, environment(project, 9), seconds=240)
    for name in ("orders.xlsx", "report.xlsx"):
        sheet = load_workbook(tmp_path / name).active
        assert sheet is not None
        # Go sorts the names of an object.
        assert {cell.value for cell in sheet[2]} == {"A-1", "12.50"}
    jobs = project.http("GET", "/v1/jobs").json()["items"]
    assert [job["file_signature"] for job in jobs] == [hashlib.sha256(CONTENT + language.encode()).hexdigest()]


CHECKS = {
    "curl": ("bash", ["bash", "-n"], "{}"),
    "cli": ("bash", ["bash", "-n"], "{}"),
    "python": ("python", [sys.executable, "-m", "py_compile"], "{}"),
    "typescript": ("node", ["node", "--check"], "{}"),
    "php": ("php", ["php", "-l"], "<?php\n{}"),
    "go": ("gofmt", ["gofmt", "-e", "-l"], "package main\nfunc f() {{\n{}\n}}"),
}
ENDINGS = {"typescript": ".mjs", "go": ".go", "php": ".php", "python": ".py"}


@needs("node")
@pytest.mark.parametrize("language", CHECKS)
def test_reference_shows_valid_code_for_every_operation(language: str, tmp_path: Path) -> None:
    tool, command, frame = CHECKS[language]
    if shutil.which(tool) is None:
        pytest.skip(f"not installed here: {tool}")
    bodies = [
        (method, path, content.get("example", {"name": 'it\'s "new"\\', "list": [1, None, True, {}]}))
        for method, path, found in operations_of(contract(build_api()))
        for content in [found.get("requestBody", {}).get("content", {}).get("application/json", {})]
    ]
    script = join_modules(CONSOLE, "docs/languages.js") + (
        f"const calls = {json.dumps(bodies)};\nconst written = ([method, path, body]) =>"
        f" modules['docs/languages.js'].callIn({language!r}, method.toUpperCase(), path, body);\n"
        "console.log(JSON.stringify(calls.map(written)));"
    )
    (tmp_path / "write.js").write_text(script)
    programs = json.loads(run(["node", "write.js"], tmp_path, dict(os.environ)))
    assert len(programs) > 120
    files = [tmp_path / f"{number}{ENDINGS.get(language, '.sh')}" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(frame.format(program))
    if language in ("go", "python"):
        run([*command, *(file.name for file in files)], tmp_path, dict(os.environ))
        return
    # These tools check one file a call: every operation with a body, and some of the others.
    for file in [each for each in files if "it's" in each.read_text() or "'\\''" in each.read_text()][:6] + files[:6]:
        run([*command, file.name], tmp_path, dict(os.environ))


def _await_line(log: Path, line: str) -> None:
    until(log.read_text, lambda text: line in text, 60)
