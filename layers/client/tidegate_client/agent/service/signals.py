"""SIGTERM and SIGINT, handed to a thread of their own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` for each SIGTERM or SIGINT, in another thread.

    A handler runs in the main thread between any two of its instructions. It must take no lock: the main thread may
    hold that very lock, as inside `Event.wait`, and would deadlock. `SimpleQueue.put` takes none."""
    received: SimpleQueue[int] = SimpleQueue()

    def handle_signals() -> None:
        while True:
            received.get()
            stop()

    threading.Thread(target=handle_signals, name="signals", daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: received.put(number))


def restore_stop_signals() -> None:
    """From now on SIGTERM and SIGINT end the process at once."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
