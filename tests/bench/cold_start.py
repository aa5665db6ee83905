"""Measures the imports of each function against those of the libraries that it cannot do without."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.support.template import ROOT, directory_of, functions

SECTION = "Cold start: imports"
FLOOR = (
    "import boto3, aws_lambda_powertools.event_handler, aws_lambda_powertools.event_handler.openapi.models, pydantic"
)
HOT = ("submit", "collect_targets", "api")
_BAR = 1.5
_TIMED = """
import sys, time
began = time.perf_counter()
{imports}
print(time.perf_counter() - began, len(sys.modules), "openpyxl" in sys.modules)
"""


def _once(imports: str) -> tuple[float, int, bool]:
    env = {"PATH": os.environ["PATH"], "AWS_DEFAULT_REGION": "us-east-1", "POWERTOOLS_METRICS_NAMESPACE": "Tidegate"}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / "layers" / layer) for layer in ("core", "client"))
    process = subprocess.run(
        [sys.executable, "-c", _TIMED.format(imports=imports)], env=env, capture_output=True, text=True, check=True
    )
    seconds, modules, openpyxl = process.stdout.split()
    return float(seconds), int(modules), openpyxl == "True"


def _handler(name: str) -> str:
    return f"sys.path.insert(0, {str(ROOT / 'functions' / name)!r}); import app"


def measure(quick: bool) -> Iterator[Figure]:
    names = sorted({directory_of(function) for function in functions().values()})
    times: dict[str, list[float]] = {name: [] for name in ("", *names)}
    modules: dict[str, int] = {}
    loads_openpyxl = []
    for turn in range(7):
        # Interleaved, so that a busy moment affects all of them. Functions with a bar run in every turn.
        for name in times if turn < 2 or not quick else ("", *HOT):
            seconds, modules[name], openpyxl = _once(_handler(name) if name else FLOOR)
            times[name].append(seconds)
            if openpyxl and name not in loads_openpyxl:
                loads_openpyxl.append(name)
    floor = min(times[""])
    yield Figure(SECTION, "boto3 + Powertools' event handler + pydantic", statistics.median(times[""]) * 1000, "ms")
    for name in names:
        ratio = min(times[name]) / floor
        bar = _BAR if name in HOT else None
        yield Figure(SECTION, f"`{name}`", ratio, "×", bar, note=f"{modules[name]} modules")
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
