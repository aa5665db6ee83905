"""Downloads the layer's dependencies as wheels with verified hashes, the only ones that `sam build` can use.

`sam build` itself checks hashes only when pip reads the lock file, not when it asks again by name for Lambda's
processor. So the wheels are downloaded here with hashes, and `sam build` finds no others.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from local.lock import LAYER
from local.place import ROOT, sha256_hex
from local.progress import Failure

FOLDER = ROOT / ".local" / "wheels"
# Platforms that Lambda's Amazon Linux 2023 (glibc 2.34) supports.
_LINUXES = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")
_MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}


def verified_wheels(python: Path, runtime: str, architectures: set[str], here: str) -> Path:
    """Returns a folder with the wheels for these processors; `here` is this machine's."""
    name = sha256_hex("\n".join([LAYER.read_text(), runtime, str(python), *sorted(architectures)]))[:16]
    folder = FOLDER / name
    if folder.exists():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=FOLDER))
    for architecture in sorted(architectures):
        command: list[str | Path] = [python, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "-r", LAYER, "-d", unfinished]
        if architecture != here:
            command += ["--implementation", "cp", "--python-version", runtime.removeprefix("python")]
            command += [f"--platform={linux}_{_MACHINES[architecture]}" for linux in _LINUXES]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Failure(
                f"the layer's packages could not be downloaded as locked:\n{result.stderr[-2000:]}",
                "check that PyPI (or PIP_INDEX_URL) is reachable; if a hash differs, find out who changed the package",
            )
    return unfinished.rename(folder)
