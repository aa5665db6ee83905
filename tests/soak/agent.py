"""The host agent with a clock that can be set: `python -m tests.soak.agent CLOCK_FILE agent …`.

The file holds the seconds by which the host's time of day differs. Monotonic time is that of the machine, as on a
real host whose clock is set.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import time_machine

from tidegate_client.cli import main

_LOOK_SECONDS = 0.3


def follow(file: Path, clock: time_machine.Traveller) -> None:
    known = 0.0
    while True:
        wanted = offset(file)
        if wanted != known:
            known = wanted
            clock.move_to(time_machine.escape_hatch.time.time() + wanted)
        time.sleep(_LOOK_SECONDS)


def offset(file: Path) -> float:
    try:
        return float(file.read_text() or 0)
    except (OSError, ValueError):
        return 0.0


if __name__ == "__main__":
    clock_file = Path(sys.argv[1])
    started = time_machine.travel(time.time() + offset(clock_file), tick=True)
    threading.Thread(target=follow, args=(clock_file, started.start()), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
