"""Runs a suite, then runs its failed tests once more on their own. `make test` ends with a list of these tests.

A failure that does not repeat is usually a matter of timing on a busy machine. A test that often needs its second try
has a bug or finds one in the product, which is why the list is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_TESTS_FAILED = 1
_PLACE = Path(".local/second-tries")


def run(suite: str, options: list[str], place: Path = _PLACE) -> int:
    """Runs the suite. Returns pytest's exit code, that of the second try if there was one."""
    name = suite.strip("/").replace("/", "-")
    return twice([sys.executable, "-m", "pytest", "-q"], options, [suite], name, place).returncode


def twice(
    pytest: list[str], options: list[str], suites: list[str], name: str, place: Path = _PLACE, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """The same for any command that starts pytest, with `how` to run it. Returns the last try."""
    record = place / name
    record.unlink(missing_ok=True)
    # A separate cache: suites that run in parallel would overwrite each other's list of failures.
    cache = place / f"{name}-cache"
    command = [*pytest, "-o", f"cache_dir={cache.absolute()}"]
    done = subprocess.run([*command, "--cache-clear", *options, *suites], check=False, **how)
    failed = cache / "v" / "cache" / "lastfailed"
    if done.returncode != _TESTS_FAILED or not failed.exists():
        return done
    place.mkdir(parents=True, exist_ok=True)
    record.write_text("\n".join(sorted(json.loads(failed.read_text()))))
    return subprocess.run([*command, "--last-failed", "-n", "0", *suites], check=False, **how)


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
