"""Reports to the API: progress every few seconds, and each result until the API has accepted it."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import cast

from tidegate_client.agent.backoff import Backoff
from tidegate_client.agent.inbox import Inbox, key_of
from tidegate_client.agent.journal import Journal, JournalError, Key
from tidegate_client.agent.service.supervisor import SupervisedThread
from tidegate_client.client import Client
from tidegate_client.errors import ApiError, Conflict, Gone, Invalid, NotFound, TidegateError
from tidegate_client.models import TransferResult

log = logging.getLogger("tidegate.agent")
RESULTS_A_CALL = 100
# Well below the time without a beat after which the agent counts as unhealthy.
LONGEST_SPREAD = 60.0
# How long the thread may take to end when it is stopped, if it is not in a call.
END_SECONDS = 1.0
# Optional fields, which an older API refuses.
FIGURES = frozenset({"size", "speed", "start_time", "end_time", "swarm", "staged_at"})


class Reporter:
    """Sends everything from one thread, so that a result is never followed by older progress."""

    def __init__(self, client: Client, agent_id: str, inbox: Inbox, journal: Journal, *, every: float = 2.0) -> None:
        self._client = client
        self._agent_id = agent_id
        self._inbox = inbox
        self._journal = journal
        self._every = every
        self._wake = threading.Event()
        self._flush = threading.Event()
        self._spread = 0.0
        self._stopped = threading.Event()
        self._backoff = Backoff()
        # Results that could not be written to the journal, as on a full disk.
        self._unsaved: dict[Key, TransferResult] = {}
        self._lock = threading.Lock()
        self.thread = SupervisedThread("reporter", self._loop, self._stopped)

    def start(self) -> None:
        self.thread.start()

    def spread(self, seconds: float) -> None:
        """Delays reports by about this many seconds, at random: hosts of a large Job must not report all at once."""
        self._spread = min(float(seconds), LONGEST_SPREAD)

    def finished(self, result: TransferResult) -> None:
        """Stores the result in the journal, then closes the transfer and wakes the thread."""
        self._store(result)
        self._inbox.finish(result)
        self._wake.set()

    def wake(self) -> None:
        """Reports without waiting for the next round."""
        self._wake.set()

    def report_again(self, result: TransferResult) -> None:
        """Reports a result once more, because the API has lost it."""
        self._store(result)
        self._wake.set()

    def _store(self, result: TransferResult) -> None:
        try:
            self._journal.record(result)
        except JournalError as error:
            log.warning("the result of %s could not be stored and is kept in memory: %s", result["transfer_id"], error)
            with self._lock:
                self._unsaved[key_of(result)] = result

    def unsaved(self) -> int:
        with self._lock:
            return len(self._unsaved)

    def unreported(self) -> int:
        """The number of results that the API has not accepted yet."""
        return self._journal.pending_count() + self.unsaved()

    def drain(self, deadline: float) -> bool:
        """Sends what is left and ends the thread. False if the API did not accept all in time: the journal keeps it."""
        self._flush.set()
        while self._has_unreported() and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.05)
        self._stopped.set()
        self._wake.set()
        self.thread.join(max(END_SECONDS, deadline - time.monotonic()))
        return not self._has_unreported()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(self._every)
            self._wake.clear()
            if self._spread and (self._has_unreported() or self._inbox.active()):
                self._flush.wait(self._spread * random.uniform(0.5, 1.5))  # noqa: S311
            try:
                self.send_all()
                self._backoff.reset()
            except (TidegateError, JournalError) as error:
                pause = self._backoff.next()
                log.warning("reporting to the API failed, next attempt in %.1f s: %s", pause, error)
                self._stopped.wait(pause)
                self._wake.set()
            self.thread.beat()

    def send_all(self) -> None:
        while results := self._some_unsaved():
            self._send(results)
            with self._lock:
                for result in results:
                    self._unsaved.pop(key_of(result), None)
        while results := self._journal.pending(RESULTS_A_CALL):
            self._send(results)
            self._journal.acknowledge(key_of(result) for result in results)
        for start in range(0, len(reports := self._inbox.unreported()), RESULTS_A_CALL):
            self._send(some := reports[start : start + RESULTS_A_CALL])
            self._inbox.mark_reported(some)

    def _has_unreported(self) -> bool:
        """True also if the journal cannot be read: there may be results in it."""
        try:
            return bool(self.unreported())
        except JournalError:
            return True

    def _some_unsaved(self) -> list[TransferResult]:
        with self._lock:
            return list(self._unsaved.values())[:RESULTS_A_CALL]

    def _send(self, results: list[TransferResult]) -> None:
        try:
            self._client.agents.report(self._agent_id, results)
        except (Invalid, NotFound, Conflict, Gone) as error:
            if len(results) == 1 and isinstance(error, Invalid) and FIGURES & results[0].keys():
                self._send([cast(TransferResult, {k: v for k, v in results[0].items() if k not in FIGURES})])
                return
            if len(results) == 1:
                self._refused(results[0], error)
                return
            # One result that the API refuses must not hold back the others: send them one by one.
            for result in results:
                self._send([result])

    @staticmethod
    def _refused(result: TransferResult, error: ApiError) -> None:
        log.warning(
            "the API refuses the result of %s; it is dropped and not sent again: %s", result["transfer_id"], error
        )
