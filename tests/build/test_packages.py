"""The packages of the agent, built twice, and what is in them. `make packages TRY=1` installs them for real."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from local import packages
from local.deployed import interpreter


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1750000000")
        return packages.build(tmp_path_factory.mktemp("packages"))


def of_kind(built: list[Path], suffix: str, tool: str) -> Path:
    found = [path for path in built if path.suffix == suffix]
    if not found:
        pytest.skip(f"{tool} is not installed")
    return found[0]


def output(*words: str | Path) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def test_same_sources_and_epoch_give_the_same_bytes(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1750000000")
    again = packages.build(tmp_path)

    assert [path.name for path in again] == [path.name for path in built]
    assert [
        path.name for path, other in zip(built, again, strict=True) if path.read_bytes() != other.read_bytes()
    ] == []


def test_single_file_runs_on_old_and_new_python(built: list[Path], tmp_path: Path) -> None:
    file = of_kind(built, ".pyz", "")
    names = {name.split("/")[0] for name in zipfile.ZipFile(file).namelist()}
    pythons = [python for python in (interpreter("3.9"), sys.executable) if python]

    for python in pythons:
        # Alone: without the packages of this environment.
        said = subprocess.run([python, "-I", "-S", file, "--version"], cwd=tmp_path, capture_output=True, text=True)
        assert (said.stdout.strip(), said.stderr) == (f"tidegate {packages.version()}", "")
    assert {"tidegate_client", "urllib3", "websocket", "async_timeout", "__main__.py"} <= names
    assert not names & {"bin", "tidegate", "boto3"}


def test_installed_service_starts_the_single_file_itself(built: list[Path], tmp_path: Path) -> None:
    file = of_kind(built, ".pyz", "")
    environment = {"TIDEGATE_API_URL": "https://api.example", "TIDEGATE_KEY": "tg_x", "HOME": str(tmp_path)}
    options = ["--agent-id", "host-1", "--root", "/", "--allow-dir", "/usr/share", "--state-dir", str(tmp_path)]
    words = [sys.executable, "-I", "-S", str(file), "agent", "install", "--print", *options]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    assert f"ExecStart={sys.executable} {file} agent --agent-id host-1" in said


def test_debian_package_has_program_unit_and_options(built: list[Path]) -> None:
    file = of_kind(built, ".deb", "dpkg-deb")
    lines = output("dpkg-deb", "-c", file).splitlines()
    listed = {line.split(maxsplit=5)[5].removeprefix("."): line.split()[:2] for line in lines}

    assert listed["/usr/bin/tidegate"] == ["-rwxr-xr-x", "root/root"]
    assert listed["/etc/tidegate/agent.conf"] == ["-rw-r--r--", "root/root"]
    assert "/usr/lib/systemd/system/tidegate-agent.service" in listed
    assert "/usr/lib/tidegate-agent/tidegate_client/agent/daemon.py" in listed
    assert not [name for name in listed if "__pycache__" in name or name.endswith("/RECORD")]
    assert output("dpkg-deb", "-f", file, "Package", "Version", "Depends").splitlines() == [
        "Package: tidegate-agent",
        f"Version: {packages.version()}",
        "Depends: python3 (>= 3.9)",
    ]
    assert output("dpkg-deb", "-I", file, "conffiles") == "/etc/tidegate/agent.conf\n"


def test_rpm_package_has_the_same_files_and_keeps_changed_options(built: list[Path]) -> None:
    file = of_kind(built, ".rpm", "rpmbuild")
    deb = of_kind(built, ".deb", "dpkg-deb")
    listed = set(output("rpm", "-qpl", file).splitlines())
    lines = (line.split(maxsplit=5)[5].removeprefix(".") for line in output("dpkg-deb", "-c", deb).splitlines())

    assert {name for name in lines if not name.endswith("/")} <= listed
    assert "python3 >= 3.9" in output("rpm", "-qp", "--requires", file).splitlines()
    assert output("rpm", "-qp", "--configfiles", file) == "/etc/tidegate/agent.conf\n"
    assert "systemctl disable --now" in output("rpm", "-qp", "--scripts", file)


def test_unit_is_hardened_and_waits_for_the_enrolment() -> None:
    unit = packages.unit()

    assert "ConditionPathExists=/etc/tidegate/tidegate-agent.env" in unit
    assert "ExecStart=/usr/bin/tidegate agent --state-dir /var/lib/tidegate-agent $TIDEGATE_AGENT_OPTIONS" in unit
    assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "ReadWritePaths=-/srv"} <= set(unit.splitlines())
