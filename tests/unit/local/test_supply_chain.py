"""Dependencies are locked with hashes, Actions are pinned to commits, and the SBOM lists all packages."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

from local.deployed import version
from local.lock import DEV, LAYER, SAM, pins, unhashed
from local.place import ROOT
from local.sam import ARCHITECTURE
from local.sbom import digests, document
from local.wheels import lambda_wheels, wheels_for
from tests.support.template import load_template


@pytest.mark.parametrize("lock", [DEV, LAYER, SAM], ids=["dev", "layer", "sam"])
def test_every_package_of_a_lock_has_its_hashes(lock: Path) -> None:
    assert len(pins(lock)) > 10
    assert unhashed(lock) == []


def test_pin_without_a_hash_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"good==1 \\\n    --hash=sha256:{'0' * 64}\n    # via x\nbad[extra]==2 ; python_version < '4'\n")
    assert unhashed(lock) == ["bad[extra]==2"]


def test_aws_sam_cli_is_locked_with_what_it_needs() -> None:
    locked = pins(SAM)
    assert {"aws-sam-cli", "aws-lambda-builders", "boto3", "click"} <= set(locked)
    assert "--require-hashes -r .lock/sam.txt" in (ROOT / "Makefile").read_text()


def test_actions_are_pinned_by_commit_and_say_their_version() -> None:
    used = [line for path in (ROOT / ".github" / "workflows").glob("*.yml") for line in path.read_text().splitlines()]
    used = [line for line in used if "uses:" in line]
    assert used
    for line in used:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_dependabot_watches_the_locks_and_the_actions() -> None:
    watched = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert {entry["package-ecosystem"] for entry in watched} == {"pip", "github-actions"}


def test_reports_of_weaknesses_have_a_way_in() -> None:
    assert "Report a vulnerability" in (ROOT / "SECURITY.md").read_text()


def test_sbom_names_every_package_once_with_its_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "pydantic-2.13.5-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    other = tmp_path / "isal-1.8.0-cp313-cp313-manylinux2014_x86_64.whl"
    other.write_bytes(b"another processor's")
    installed = [found for found in distributions() if found.name in ("pydantic", "pydantic_core", "openpyxl")]

    made = document(installed, digests(tmp_path, "aarch64"))

    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    named = {component["name"]: component for component in made["components"]}
    assert set(named) == {"pydantic", "pydantic-core", "openpyxl"}
    assert named["pydantic"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]
    assert named["pydantic"]["licenses"] == [{"expression": "MIT"}]
    needs = {entry["ref"]: entry["dependsOn"] for entry in made["dependencies"]}
    assert named["pydantic-core"]["purl"] in needs[named["pydantic"]["purl"]]
    assert named["pydantic"]["purl"] in needs["tidegate"]
    assert set(needs) == {"tidegate", *(component["bom-ref"] for component in made["components"])}
    assert document(installed, digests(tmp_path, "aarch64")) == made
    assert json.dumps(made)


def test_wheels_are_had_once_for_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local.wheels.FOLDER", tmp_path)
    calls: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(" ".join(map(str, command)))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        assert lambda_wheels("3.13", "aarch64") != wheels_for(Path("/usr/bin/python3"))

    assert len(calls) == 2
    assert all("--require-hashes" in call for call in calls)
    assert "--python-version 3.13 --platform=manylinux2014_aarch64" in calls[0]
    assert "--platform" not in calls[1]


def test_layer_is_built_for_the_python_and_processor_of_the_template() -> None:
    makefile = (ROOT / "layers/deps/Makefile").read_text()
    properties = load_template()["Resources"]["DepsLayer"]["Properties"]
    assert properties["CompatibleRuntimes"] == [f"python{version()}"]
    assert properties["CompatibleArchitectures"] == [ARCHITECTURE]
    assert f"--python-version {version()} --python-platform aarch64-" in makefile
