"""Runs a suite, then runs its failed tests once more on their own. `make test` ends with a list of these tests.

A failure that does not repeat is usually a matter of timing on a busy machine. A test that often needs its second try
has a bug or finds one in the product, which is why the list is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_TESTS_FAILED = 1
_PLACE = Path(".local/second-tries")


def run(suite: str, options: list[str], place: Path = _PLACE) -> int:
    """Runs the suite. Returns pytest's exit code, that of the second try if there was one."""
    name = suite.strip("/").replace("/", "-")
    record = place / name
    record.unlink(missing_ok=True)
    # A separate cache: suites that run in parallel would overwrite each other's list of failures.
    cache = place / f"{name}-cache"
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache.absolute()}"]
    code = subprocess.run([*command, "--cache-clear", *options, suite], check=False).returncode
    failed = cache / "v" / "cache" / "lastfailed"
    if code != _TESTS_FAILED or not failed.exists():
        return code
    place.mkdir(parents=True, exist_ok=True)
    record.write_text("\n".join(sorted(json.loads(failed.read_text()))))
    return subprocess.run([*command, "--last-failed", "-n", "0", suite], check=False).returncode


def forget(place: Path = _PLACE) -> None:
    for record in _lists(place):
        record.unlink()


def say(place: Path = _PLACE) -> str:
    """Returns the list over all suites, empty if no test needed a second try."""
    names = [name for record in _lists(place) for name in record.read_text().splitlines()]
    return "\n".join([f"{len(names)} needed a second try:", *(f"  {name}" for name in names)]) if names else ""


def _lists(place: Path) -> list[Path]:
    return sorted(path for path in place.glob("*") if path.is_file())


def main(arguments: list[str]) -> int:
    command, *rest = arguments
    if command == "run":
        return run(rest[-1], rest[:-1])
    if command == "forget":
        forget()
    elif said := say():
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
