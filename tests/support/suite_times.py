"""Measures the suites of `make test`, which prints one line for each at its end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_PLACE = Path(".local/suite-times")


def run(name: str, command: list[str], place: Path = _PLACE) -> int:
    """Runs the command, records how many seconds it took, and returns its exit code."""
    began = time.monotonic()
    # A recursive make needs the file descriptors of its parent's job server.
    code = subprocess.run(command, check=False, close_fds=False).returncode
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(f"{time.monotonic() - began:.1f}")
    return code


def forget(place: Path = _PLACE) -> None:
    for path in place.glob("*"):
        path.unlink()


def report(place: Path = _PLACE) -> str:
    """Returns one line for each suite, slowest first. Suites overlap, so their sum exceeds the time of the run."""
    seconds = {path.name: float(path.read_text()) for path in place.glob("*")}
    slowest_first = sorted(seconds, key=lambda name: -seconds[name])
    return "\n".join(f"  {name:12} {seconds[name]:5.0f} s" for name in slowest_first)


def main(arguments: list[str]) -> int:
    command, *rest = arguments
    if command == "run":
        return run(rest[0], rest[1:])
    if command == "forget":
        forget()
    elif lines := report():
        print(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
