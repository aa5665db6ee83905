"""Downloads the layer's dependencies as wheels with verified hashes. `sam build` can use no other wheels.

The wheels are kept, so that a build can be repeated without a network, and the SBOM can name each wheel's digest."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from local.lock import LAYER
from local.place import ROOT, sha256_hex
from local.progress import Failure

FOLDER = ROOT / ".local" / "wheels"
# Platforms that Lambda's Amazon Linux 2023 (glibc 2.34) supports.
_LINUXES = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")


def lambda_wheels(version: str, machine: str) -> Path:
    """Returns a folder with the wheels for Lambda's Python version and processor.

    This Python may have another version."""
    platforms = [f"--platform={linux}_{machine}" for linux in _LINUXES]
    return _downloaded([], ["--implementation", "cp", "--python-version", version, *platforms])


def wheels_for(python: Path) -> Path:
    """Returns a folder with the wheels for this machine and for the Python at this path."""
    # By this pip: that Python may have none.
    return _downloaded(["--python", str(python)], [])


def _downloaded(by: list[str], options: list[str]) -> Path:
    name = sha256_hex("\n".join([LAYER.read_text(), *by, *options]))[:16]
    folder = FOLDER / name
    if folder.exists():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=FOLDER))
    command: list[str | Path] = [sys.executable, "-m", "pip", *by, "download", "-q", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "-r", LAYER, "-d", unfinished, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(
            f"the layer's packages could not be downloaded as locked:\n{result.stderr[-2000:]}",
            "check that PyPI (or PIP_INDEX_URL) is reachable; if a hash differs, find out who changed the package",
        )
    return unfinished.rename(folder)
