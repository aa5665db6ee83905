"""`make mutants`: puts one fault at a time into a copy of this tree, and runs the tests that must notice it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalog import MUTANTS, Mutant

_ROOT = Path(__file__).resolve().parents[2]
_JOBS = int(os.environ.get("MUTANTS_JOBS", "2"))
_SURVIVED, _DOES_NOT_APPLY = "SURVIVED", "DOES NOT APPLY"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def changed(mutant: Mutant, source: str) -> str | None:
    """The source with the fault; None if it does not say what the catalog says, or would not even compile."""
    if source.count(mutant.old) != 1:
        return None
    made = source.replace(mutant.old, mutant.new)
    try:
        compile(made, mutant.file, "exec")
    except SyntaxError:
        return None
    return made


def try_mutant(mutant: Mutant, tree: Path) -> str:
    """What killed it, or that nothing did."""
    path = tree / mutant.file
    source = path.read_text()
    made = changed(mutant, source)
    if made is None:
        return _DOES_NOT_APPLY
    path.write_text(made)
    try:
        return _killer(mutant, tree)
    finally:
        path.write_text(source)


def _killer(mutant: Mutant, tree: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *mutant.tests]
    # For processes that a test starts: they would import what is installed, without the fault.
    paths = os.pathsep.join(str(tree / name) for name in ("layers/core", "layers/client", "."))
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    found = _FAILED.search(done.stdout)
    if found:
        return found[1]
    # 1 is "tests failed"; anything else is not a test that noticed.
    return (
        _SURVIVED
        if done.returncode == 0
        else f"pytest ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}"
    )


def _copy(target: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=_ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, listed):
        source, copy = _ROOT / os.fsdecode(name), target / os.fsdecode(name)
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return target


def main(wanted: list[str]) -> int:
    mutants = [mutant for mutant in MUTANTS if not wanted or any(word in mutant.name for word in wanted)]
    width = max(len(mutant.name) for mutant in mutants)
    alive = []
    with tempfile.TemporaryDirectory(prefix="mutants") as place:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(_JOBS):
            trees.put(_copy(Path(place) / str(number)))

        def attempt(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return try_mutant(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(_JOBS) as pool:
            for mutant, outcome in zip(mutants, pool.map(attempt, mutants), strict=True):
                print(f"{mutant.name:<{width}}  {outcome}", flush=True)
                if not outcome.startswith("tests/"):
                    alive.append(mutant.name)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
