"""Builds the client's wheel: `python -m local.client_wheel [DIRECTORY]`, by default into dist/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from local.place import ROOT


def build(out: Path) -> Path:
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "build", "-q", "--wheel", "--out-dir", str(out), str(ROOT / "layers" / "client")]
    subprocess.run(command, check=True)
    return max(out.glob("tidegate_client-*.whl"), key=lambda wheel: wheel.stat().st_mtime)


if __name__ == "__main__":
    print(f"  ✓ {build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'dist').name}")
