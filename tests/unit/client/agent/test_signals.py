"""SIGTERM arrives between any two instructions of the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.patience import until
from tidegate_client.agent.service import call_on_stop_signals, restore_stop_signals


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_main_thread_holds_a_lock_still_stops(number: signal.Signals) -> None:
    """As in the middle of `Event.wait`: a handler that called `stop` itself would wait for its own thread."""
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        if lock.acquire(timeout=30):
            lock.release()
            stopped.set()

    call_on_stop_signals(stop)
    with lock:
        signal.raise_signal(number)
        assert not stopped.is_set()

    until(stopped.is_set)


def test_second_signal_is_passed_on_too() -> None:
    calls: list[int] = []
    twice = threading.Event()

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:
            twice.set()

    call_on_stop_signals(stop)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)

    until(twice.is_set)


def test_restored_signals_end_the_process_again() -> None:
    call_on_stop_signals(lambda: None)
    restore_stop_signals()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
