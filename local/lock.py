"""Locks the dependencies of pyproject.toml with hashes, in .lock and in layers/deps/requirements.txt.

Other lock files are made from `.lock/*.in`. The file `.lock/uv.txt` locks uv, which installs everything else. `make
lock` writes the lock files with `python -m local.lock write`. To check them, `python -m local.lock check` needs no
network."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local.place import ROOT

PROJECT = ROOT / "pyproject.toml"
DEV = ROOT / ".lock" / "dev.txt"
SAM_WANTED, SAM = ROOT / ".lock" / "sam.in", ROOT / ".lock" / "sam.txt"
UV_WANTED, UV = ROOT / ".lock" / "uv.in", ROOT / ".lock" / "uv.txt"
CHECKS_WANTED, CHECKS = ROOT / ".lock" / "checks.in", ROOT / ".lock" / "checks.txt"
BENCH_WANTED, BENCH = ROOT / ".lock" / "bench.in", ROOT / ".lock" / "bench.txt"
LAYER = ROOT / "layers" / "deps" / "requirements.txt"
# The dependencies in the agent's packages, for the oldest Python version of hosts.
CLIENT, AGENT = ROOT / "layers" / "client" / "pyproject.toml", ROOT / ".lock" / "agent.txt"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
HASHES = re.compile(r"--hash=sha256:[0-9a-f]{64}")
COMPILE = ["pip", "compile", "-q", "--universal", "--python-version", "3.11", "--generate-hashes"]
COMPILE += ["--no-emit-index-url", "--no-header"]


def write() -> None:
    uv = str(Path(sys.executable).parent / "uv")
    constraint = ["-c", str(DEV.relative_to(ROOT)), "--no-annotate"]
    files: list[tuple[Path, Path, list[str]]] = [(PROJECT, DEV, ["--all-extras"]), (PROJECT, LAYER, constraint)]
    files += [(SAM_WANTED, SAM, []), (UV_WANTED, UV, []), (CHECKS_WANTED, CHECKS, []), (BENCH_WANTED, BENCH, [])]
    files += [(CLIENT, AGENT, ["--python-version", "3.9"])]
    for source, out, options in files:
        command = [uv, *COMPILE, str(source.relative_to(ROOT)), *options, "-o", str(out.relative_to(ROOT))]
        subprocess.run(command, cwd=ROOT, check=True)


def pins(path: Path) -> dict[str, str]:
    """Returns the versions that a lock file pins, by package."""
    return {canonicalize_name(name): version for name, version in PINNED.findall(path.read_text())}


def unmet(requirements: list[str], pinned: dict[str, str]) -> list[str]:
    wanted = [Requirement(line) for line in requirements]
    return [str(r) for r in wanted if not r.specifier.contains(pinned.get(canonicalize_name(r.name), "0"))]


def unhashed(path: Path) -> list[str]:
    """Returns the pinned packages that have no hash. For these, pip would install any file that the index offers."""
    entries = re.split(r"\n(?=\S)", "\n".join(line for line in path.read_text().splitlines() if "# via" not in line))
    return [entry.split()[0] for entry in entries if PINNED.match(entry) and not HASHES.search(entry)]


def problems() -> list[str]:
    """Returns a line for each problem: a package that a lock file lacks, or whose version differs in two lock files."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    product = project["dependencies"]
    everything = product + [r for extra in project["optional-dependencies"].values() for r in extra]
    dev, layer = pins(DEV), pins(LAYER)
    lines = [f".lock/dev.txt does not satisfy {line}" for line in unmet(everything, dev)]
    lines += [f"layers/deps/requirements.txt does not satisfy {line}" for line in unmet(product, layer)]
    lines += [f"layers/deps pins {n}=={v}, the lock {dev.get(n)}" for n, v in layer.items() if dev.get(n) != v]
    for wanted, path in ((SAM_WANTED, SAM), (UV_WANTED, UV), (CHECKS_WANTED, CHECKS), (BENCH_WANTED, BENCH)):
        found = unmet(wanted.read_text().split(), pins(path))
        lines += [f"{path.relative_to(ROOT)} does not satisfy {line}" for line in found]
    client = tomllib.loads(CLIENT.read_text())["project"]["dependencies"]
    lines += [f".lock/agent.txt does not satisfy {line}" for line in unmet(client, pins(AGENT))]
    locks = (DEV, LAYER, SAM, UV, CHECKS, BENCH, AGENT)
    lines += [f"{path.relative_to(ROOT)} has no hash of {pin}" for path in locks for pin in unhashed(path)]
    missing = reachable(product) - set(layer)
    lines += [f"layers/deps/requirements.txt lacks {name}" for name in sorted(missing)]
    extra = set(layer) - reachable(product)
    return lines + [f"layers/deps/requirements.txt holds {name}, which nothing needs" for name in sorted(extra)]


def reachable(requirements: list[str]) -> set[str]:
    """Returns the names of these requirements and of all their dependencies.

    The dependencies are read from the metadata of the installed packages."""
    from importlib.metadata import requires

    seen: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        for line in requires(name) or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return seen


def main() -> int:
    if sys.argv[1:] == ["write"]:
        write()
        return 0
    lines = problems()
    for line in lines:
        print(line, file=sys.stderr)
    if lines:
        print("  → make lock", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
