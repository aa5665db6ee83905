"""Measures the imports of each function against those of the libraries that it cannot do without.

In processor time: other work on the machine does not change it, and a cold start waits for nothing else here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure, few
from tests.support.template import ROOT, directory_of, functions

SECTION = "Cold start: imports"
FLOOR = (
    "import boto3, aws_lambda_powertools.event_handler, aws_lambda_powertools.event_handler.openapi.models, pydantic"
)
# Functions that people wait for, with their bars.
HOT = {"submit": 1.5, "collect_targets": 1.5, "api": 0.8}
# `api` imports the routes of a path at the first request for it.
REQUESTS = {"GET /v1/jobs/{job}": "/v1/jobs/x", "POST /v1/task": "/v1/task"}
_TIMED = """
import sys, time
began = time.process_time()
{imports}
print(time.process_time() - began, len(sys.modules), "openpyxl" in sys.modules)
"""


def _once(imports: str) -> tuple[float, int, bool]:
    env = {"PATH": os.environ["PATH"], "AWS_DEFAULT_REGION": "us-east-1", "POWERTOOLS_METRICS_NAMESPACE": "Tidegate"}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / "layers" / layer) for layer in ("core", "client"))
    process = subprocess.run(
        [sys.executable, "-c", _TIMED.format(imports=imports)], env=env, capture_output=True, text=True, check=True
    )
    seconds, modules, openpyxl = process.stdout.split()
    return float(seconds), int(modules), openpyxl == "True"


def _code(name: str) -> str:
    """What a cold start imports: of a function, or of `api` for a request."""
    if not name:
        return FLOOR
    if name in REQUESTS:
        return f"{_code('api')}; app.api.include_routes_of({REQUESTS[name]!r})"
    return f"sys.path.insert(0, {str(ROOT / 'functions' / name)!r}); import app"


def measure(quick: bool) -> Iterator[Figure]:
    names = sorted({directory_of(function) for function in functions().values()})
    times: dict[str, list[float]] = {name: [] for name in ("", *names, *REQUESTS)}
    modules: dict[str, int] = {}
    loads_openpyxl = []
    for turn in range(few(7)):
        # Interleaved, so that a busy moment affects all of them. Functions with a bar run in every turn.
        for name in times if few(100) > 1 and (turn < 2 or not quick) else ("", *HOT, *REQUESTS):
            seconds, modules[name], openpyxl = _once(_code(name))
            times[name].append(seconds)
            if openpyxl and name not in loads_openpyxl:
                loads_openpyxl.append(name)
    floor = min(times[""])
    yield Figure(SECTION, "boto3 + Powertools' event handler + pydantic", statistics.median(times[""]) * 1000, "ms")
    for name in [name for name in (*names, *REQUESTS) if times[name]]:
        ratio = min(times[name]) / floor
        label, bar = (
            (f"`api` and its routes for {name}", HOT["api"]) if name in REQUESTS else (f"`{name}`", HOT.get(name))
        )
        yield Figure(SECTION, label, ratio, "×", bar, note=f"{modules[name]} modules")
    rendering = [name for name in loads_openpyxl if "render" not in name]
    yield Figure(SECTION, "handlers that import openpyxl and do not render", len(rendering), "", 0)


def sizes(artifacts: Path) -> Iterator[Figure]:
    """Yields the sizes of the output of `make build`, or a note if it is missing."""
    if not artifacts.is_dir():
        yield Figure(SECTION, "artifacts and layers", 0, "MB", note="not built: make build")
        return
    weights = {
        part.name: sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) / 1e6
        for part in artifacts.iterdir()
        if part.is_dir()
    }
    layers = [name for name in weights if name.endswith("Layer")]
    for layer in sorted(layers):
        yield Figure(SECTION, f"{layer}, unzipped", weights.pop(layer), "MB")
    largest = max(weights, key=lambda name: weights[name])
    yield Figure(SECTION, f"the largest of {len(weights)} artifacts", weights[largest], "MB", note=largest)
