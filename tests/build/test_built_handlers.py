"""The output of `sam build` is complete: each handler imports from its own folder and the two layers only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local import deployed, template
from local.place import ROOT
from local.sam import HERE
from local.wheels import lambda_wheels
from tidegate.web import openapi
from tidegate.web.api import build_api

OUT = HERE / "out"
RESOURCES = template.load()["Resources"]
FUNCTIONS = sorted(n for n, r in RESOURCES.items() if r["Type"] == "AWS::Serverless::Function")
PROBE = """
import json, sys
paths = json.loads(sys.argv[1])
sys.path[:0] = paths
import app
assert callable(app.handler)
if hasattr(getattr(app, "api", None), "include_all"):
    app.api.include_all()
strays = [m.__file__ for m in list(sys.modules.values()) if sys.argv[2] in (getattr(m, "__file__", None) or "")]
print(json.dumps([s for s in strays if not any(s.startswith(p) for p in paths)]))
"""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_handler_imports_from_the_built_artifacts_alone(function: str) -> None:
    layers = RESOURCES[function]["Properties"].get("Layers", [])
    assert layers == [], "a function with layers of its own needs them named here"
    paths = [OUT / function, OUT / "DepsLayer" / "python", OUT / "CoreLayer" / "python"]
    arguments = [json.dumps([str(path) for path in paths]), str(ROOT / "layers")]
    environment = {"AWS_DEFAULT_REGION": "us-east-1", "PATH": "/usr/bin:/bin", "TABLE_NAME": "table"}
    python = (HERE / "python").read_text()
    command = [python, "-I", "-S", "-B", "-c", PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_built_layer_has_the_openapi_document_of_its_routes() -> None:
    built = OUT / "CoreLayer" / "python" / "tidegate" / "web" / openapi.BUILT.name
    assert json.loads(built.read_text("utf-8")) == openapi.contract(build_api())


def test_layer_for_lambda_is_built_whatever_python_is_here(tmp_path: Path) -> None:
    """`make build` on a machine that has another Python version and processor than Lambda."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    wheels = f"--no-index --find-links {lambda_wheels(deployed.version(), 'aarch64')}"
    environment = {"PATH": path, "HOME": str(tmp_path), "ARTIFACTS_DIR": str(tmp_path / "out"), "DEPS_WHEELS": wheels}
    command = ["make", "build-DepsLayer"]
    done = subprocess.run(command, cwd=ROOT / "layers/deps", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    built = tmp_path / "out" / "python"
    libraries = list(built.rglob("*.so"))
    machines = {int.from_bytes(library.read_bytes()[18:20], "little") for library in libraries}
    tags = {tag for library in libraries for tag in re.findall(r"cpython-\d+|abi3", library.name)}
    assert machines == {183}, "the number of AArch64 in ELF"
    assert tags == {f"cpython-{deployed.version().replace('.', '')}", "abi3"}
    assert {found.name for found in built.glob("*.dist-info")} == {
        found.name for found in (OUT / "DepsLayer" / "python").glob("*.dist-info")
    }


@pytest.mark.parametrize("layer", ["DepsLayer", "CoreLayer", "ClientLayer"])
def test_layer_is_laid_out_as_lambda_wants_it(layer: str) -> None:
    assert (OUT / layer / "python").is_dir()


def test_client_imports_from_its_layer_and_the_dependencies_alone() -> None:
    paths = [str(OUT / layer / "python") for layer in ("ClientLayer", "DepsLayer")]
    code = f"import sys; sys.path[:0] = {paths!r}; import tidegate_client; print(tidegate_client.__file__)"
    command = [(HERE / "python").read_text(), "-I", "-S", "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(paths[0]), done.stderr


def test_layer_has_the_locked_boto3_and_not_the_runtimes() -> None:
    locked = re.search(r"^boto3==(\S+)", (ROOT / ".lock" / "dev.txt").read_text(), re.MULTILINE)
    assert locked
    assert (OUT / "DepsLayer" / "python" / f"boto3-{locked[1]}.dist-info").is_dir()


def test_layers_are_far_below_lambdas_limit_of_250_mb() -> None:
    size = sum(path.stat().st_size for layer in ("DepsLayer", "CoreLayer") for path in (OUT / layer).rglob("*"))
    assert size < 100 * 1024 * 1024
