from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local import deployed


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No other Python: no uv, an empty PATH, an empty pyenv."""
    monkeypatch.setattr(deployed, "_UV", program(tmp_path / "uv", "exit 2"))
    monkeypatch.setattr(deployed, "VENV", tmp_path / "venv")
    monkeypatch.setattr(deployed, "version", lambda: "3.99")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.delenv("DEPLOYED_PYTHON", raising=False)
    (tmp_path / "bin").mkdir()


def test_deployed_version_is_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert deployed.version() == "3.13"


def test_missing_python_version_is_reported_and_nothing_created(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    deployed.make()
    assert not (tmp_path / "venv").exists(), "made for a version that is gone"
    assert "Python 3.99, the deployed version, is not installed here: no test ran on it" in deployed.say()


def test_pyenv_version_is_used_if_its_shim_refuses_to_run(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python3.99", "echo 'command not found' >&2; exit 127")
    assert deployed.interpreter("3.99") is None
    held = tmp_path / "pyenv" / "versions" / "3.99.1" / "bin"
    held.mkdir(parents=True)
    real = program(held / "python3.99", "echo 3.99")
    assert deployed.interpreter("3.99") == real


def test_named_interpreter_comes_first_if_it_is_of_that_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / "python3.99", "echo 3.99")
    monkeypatch.setenv("DEPLOYED_PYTHON", sys.executable)
    assert deployed.interpreter("3.99") == str(tmp_path / "bin" / "python3.99")
    named = program(tmp_path / "mine", "echo 3.99")
    monkeypatch.setenv("DEPLOYED_PYTHON", named)
    assert deployed.interpreter("3.99") == named


def test_one_environment_is_enough_where_it_is_of_the_deployed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "{}.{}".format(*sys.version_info)
    monkeypatch.setattr(deployed, "version", lambda: here)
    deployed.make()
    assert f"all tests run on Python {here}" in deployed.say()
