"""Measures the suites of `make test`: what runs and how long it will take meanwhile, and a line for each at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from local.progress import clock, moving_line, remember, say, usual_seconds

_PLACE = Path(".local/suite-times")
# Seconds on two idle cores, until this machine has times of its own. One after another, and within a line in parallel.
STAGES: tuple[Mapping[str, float], ...] = (
    {"lint": 60, "types": 90, "build-test": 90},
    {"unit": 180},
    {"integration": 240},
    {"faults": 90, "workflow": 120},
    {"browser": 180, "e2e": 210},
)
_BEGAN = ".began"
_WATCH_SECONDS = 0.5


def run(name: str, command: list[str], place: Path = _PLACE) -> int:
    """Runs the command, records how many seconds it took, and returns its exit code."""
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}{_BEGAN}").write_text(str(time.time()))
    began = time.monotonic()
    # A recursive make needs the file descriptors of its parent's job server.
    code = subprocess.run(command, check=False, close_fds=False).returncode
    (place / name).write_text(f"{time.monotonic() - began:.1f}")
    if code == 0:
        remember(f"suite {name}", time.monotonic() - began)
    return code


def forget(place: Path = _PLACE) -> None:
    for path in place.glob("*"):
        path.unlink()


def ended(place: Path = _PLACE) -> dict[str, float]:
    """Seconds of each suite that has ended."""
    return {path.name: float(path.read_text() or 0) for path in place.glob("*") if path.suffix != _BEGAN}


def report(place: Path = _PLACE) -> str:
    """Returns one line for each suite, slowest first. Suites overlap, so their sum exceeds the time of the run."""
    seconds = ended(place)
    slowest_first = sorted(seconds, key=lambda name: -seconds[name])
    return "\n".join(f"  {name:12} {seconds[name]:5.0f} s" for name in slowest_first)


def running(place: Path = _PLACE) -> dict[str, float]:
    """When each suite began that has not ended."""
    over = ended(place)
    began = {path.name.removesuffix(_BEGAN): path for path in place.glob(f"*{_BEGAN}")}
    return {name: float(path.read_text() or time.time()) for name, path in began.items() if name not in over}


def seconds_left(now: float, place: Path = _PLACE) -> float:
    """By the last times of this machine: of each stage, what its slowest suite still needs."""
    over, began = ended(place), running(place)

    def left(name: str, otherwise: float) -> float:
        usual = usual_seconds(f"suite {name}", otherwise) or otherwise
        return 0 if name in over else max(0.0, usual - (now - began[name])) if name in began else usual

    return sum(max(left(name, usual) for name, usual in stage.items()) for stage in STAGES)


def line(now: float, place: Path = _PLACE) -> str:
    names = [name for stage in STAGES for name in stage]
    at_work = "  ".join(f"{name} {clock(now - began)}" for name, began in sorted(running(place).items()))
    done = sum(name in ended(place) for name in names)
    return f"  … {done} of {len(names)} suites ended  {at_work}  about {clock(seconds_left(now, place))} left"


def watch(place: Path = _PLACE) -> None:
    """Shows what runs, until make ends: a moving line on a terminal, else a line for each begin and end."""
    parent, said = os.getppid(), set[str]()
    while os.getppid() == parent:
        if sys.stdout.isatty():
            moving_line(line(time.time(), place))
        else:
            over = ended(place)
            events = [f"  … {name}" for name in running(place)]
            events += [f"  · {name} has ended after {over[name]:.0f} s" for name in over]
            for event in [event for event in events if event not in said]:
                say(event)
                said.add(event)
        time.sleep(_WATCH_SECONDS)


def main(arguments: list[str]) -> int:
    command, *rest = arguments
    if command == "run":
        return run(rest[0], rest[1:])
    if command == "forget":
        forget()
    elif command == "watch":
        watch()
    elif lines := report():
        say(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
