"""A second virtual environment, with the Python version of the deployed functions, for tests that should run on it.

`python -m local.deployed make` creates it if that version is installed; `… say` prints whether it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from local.place import ROOT

VENV = ROOT / ".venv-deployed"
LOCK = ROOT / ".lock" / "dev.txt"
_UV = str(Path(sys.executable).parent / "uv")


def version() -> str:
    """Returns the Python version in the template: "3.13" for `Runtime: python3.13`."""
    match = re.search(r"^ +Runtime: python(3\.\d+)$", (ROOT / "template.yaml").read_text(), re.MULTILINE)
    assert match, "template.yaml names no Python runtime"
    return match[1]


def interpreter(wanted: str) -> str | None:
    """Returns the path of this Python version, from `DEPLOYED_PYTHON`, uv, PATH or pyenv; None if there is none."""
    known = subprocess.run([_UV, "python", "find", wanted, "--no-python-downloads"], capture_output=True, text=True)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [os.environ.get("DEPLOYED_PYTHON", ""), known.stdout.strip(), shutil.which(f"python{wanted}") or ""]
    candidates += sorted((str(path) for path in pyenv.glob(f"{wanted}.*/bin/python{wanted}")), reverse=True)
    return next((path for path in candidates if path and _is(path, wanted)), None)


def _is(path: str, wanted: str) -> bool:
    # pyenv's shims are on PATH even for versions that they refuse to run.
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([path, "-c", code], capture_output=True, text=True).stdout.strip() == wanted
    except OSError:
        return False


def make() -> None:
    """Creates the environment, or replaces an environment of another version.

    If the version is not installed, or is the one that runs this, deletes the environment."""
    wanted = version()
    python = None if _is(sys.executable, wanted) else interpreter(wanted)
    if python is None:
        # An environment of a version that is gone, or no longer deployed, must not be used.
        shutil.rmtree(VENV, ignore_errors=True)
        return
    stamp, locked = VENV / ".locked", f"{wanted} {LOCK.read_text()}"
    if stamp.exists() and stamp.read_text() == locked:
        return
    print(f"  … making {VENV.name} with Python {wanted}, the deployed version", flush=True)
    install = [_UV, "pip", "install", "-q", "--python", str(VENV / "bin" / "python")]
    subprocess.run([_UV, "venv", "-q", "--clear", "--python", python, str(VENV)], check=True)
    subprocess.run([*install, "--require-hashes", "-r", str(LOCK)], check=True)
    subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True, cwd=ROOT)
    stamp.write_text(locked)


def say() -> str:
    """Returns a line that says which tests ran on the deployed Python version."""
    wanted = version()
    if _is(sys.executable, wanted):
        return f"  ✓ all tests run on Python {wanted}, the deployed version"
    if (VENV / "bin" / "pytest").exists():
        return f"  ✓ unit and integration tests run on Python {wanted}, the deployed version"
    return (
        f"  ! Python {wanted}, the deployed version, is not installed here: no test ran on it\n"
        f"    → install it (uv python install {wanted}), or name it: DEPLOYED_PYTHON=/path/to/python{wanted} make test"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["make"]:
        make()
    print(say(), flush=True)
