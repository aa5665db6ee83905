"""The agent's inbox: notifications over the WebSocket, the list of open transfers, and the reports about them."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from tidegate_client.agent.codes import Code
from tidegate_client.agent.journal import Journal, JournalError, Key
from tidegate_client.agent.threads import SupervisedThread
from tidegate_client.client import Client
from tidegate_client.download import Cancelled, Stalled
from tidegate_client.errors import ApiError, Conflict, Gone, Invalid, NotFound, TidegateError
from tidegate_client.inputs import Transfer, TransferResult
from tidegate_client.rates import Backoff
from tidegate_client.watching import MessageTooBig, NoSocketLibrary, Socket, SocketFailed

# --- push
# The agent's WebSocket, over which the API notifies it of new transfers, so that it need not poll.
#
# While idle it costs one small message every nine and a half minutes, since API Gateway closes a connection that is
# silent for ten, and a new connection every two hours, the longest that API Gateway allows.

log = logging.getLogger("tidegate.agent")

BEAT_SECONDS = 570.0
# A fleet that lost its connections reconnects over this time: API Gateway accepts 500 new ones a second.
FIRST_PAUSE, LONGEST_PAUSE, LEAST_PAUSE = 30.0, 300.0, 0.05
LISTEN_SECONDS = 5.0
# API Gateway waits this long for its function.
CONNECT_SECONDS = 30.0
# How long the answer to the first ping may take, with cold functions.
PING_ANSWER_SECONDS = 20.0
# After a connection that lasted this long, the next one is not tested with a ping.
TRUSTED_AFTER_SECONDS = 3600.0


class Push:
    """Holds the agent's WebSocket, over which the API announces new and cancelled transfers.

    `trigger_poll` is called for each notification and each new connection. `on_ended` is called with the id of each
    transfer that is cancelled. The host's inventory is part of the connection request, because a separate message would
    cost more."""

    def __init__(
        self,
        client: Client,
        inventory: Callable[[], dict[str, Any]],
        trigger_poll: Callable[..., None],
        stopping: threading.Event,
        *,
        on_ended: Callable[[str], None] = lambda _transfer_id: None,
        proxy: str | None = None,
        first_pause: float = FIRST_PAUSE,
        on_new_goals: Callable[[float], None] = lambda _within: None,
    ) -> None:
        self._client = client
        self._on_ended = on_ended
        self._inventory = inventory
        self._trigger_poll = trigger_poll
        self._stopping = stopping
        self._proxy = proxy
        self._on_new_goals = on_new_goals
        self._backoff = Backoff(first_pause, LONGEST_PAUSE, least=LEAST_PAUSE)
        self._trusted = False
        self.connected = False
        self.connections = 0

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._use_connection()
            except NoSocketLibrary:
                log.warning(
                    "websocket-client is not installed: this host polls, and receives new files up to two minutes "
                    "later; install it to be notified at once"
                )
                return
            except MessageTooBig as error:
                # The next connection would be closed the same way.
                self.connected = False
                self._trigger_poll(0.0, again=False)
                log.warning("the WebSocket cannot be used, this host polls until the agent is restarted: %s", error)
                return
            except TidegateError as error:
                was_connected, self.connected = self.connected, False
                pause = self._backoff.next()
                level = logging.INFO if was_connected else logging.WARNING
                log.log(level, "no WebSocket, this host polls; next attempt in %.0f s: %s", pause, error)
                if was_connected:
                    # Wake the poller: its pauses are hours while there is a connection.
                    self._trigger_poll(pause, again=False)
                self._stopping.wait(pause)
            finally:
                self.connected = False

    def _use_connection(self) -> None:
        with contextlib.closing(
            Socket(self._client, None, timeout=CONNECT_SECONDS, proxy=self._proxy, host_facts=self._inventory())
        ) as socket:
            began = time.monotonic()
            self._test_connection(socket)
            self.connected = True
            self.connections += 1
            self._backoff.reset()
            log.info("WebSocket connected: the API notifies this host of new files")
            # Notifications may have been missed while there was no connection.
            self._trigger_poll(0.0, again=False)
            beat_at = time.monotonic() + BEAT_SECONDS * random.uniform(0.9, 1.0)  # noqa: S311
            while not self._stopping.is_set():
                self._trusted = time.monotonic() - began >= TRUSTED_AFTER_SECONDS
                message = socket.receive(min(LISTEN_SECONDS, max(0.01, beat_at - time.monotonic())))
                self._handle(message)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + BEAT_SECONDS
                    socket.beat()

    def _handle(self, message: dict[str, Any] | None) -> None:
        if message is not None and message.get("type") == "transfers":
            if isinstance(ended := message.get("ended"), str):
                self._on_ended(ended)
            within = _seconds(message.get("within_s"))
            if message.get("releases"):
                # What it misses is sent after it has asked: there is nothing to poll for yet.
                self._on_new_goals(within)
            else:
                # A repeated one is about entries of long ago, which the first poll lists.
                self._trigger_poll(within, again=not message.get("repeat"))

    def _test_connection(self, socket: Socket) -> None:
        """Tests a new connection with a ping, because a proxy may open the connection but pass no messages.

        With such a connection, a host would poll only every few hours and would get no notification."""
        if self._trusted:
            return
        socket.ping()
        deadline = time.monotonic() + PING_ANSWER_SECONDS
        while not self._stopping.is_set():
            message = socket.receive(min(LISTEN_SECONDS, max(0.01, deadline - time.monotonic())))
            if message is not None:
                self._handle(message)
                return
            if time.monotonic() >= deadline:
                raise SocketFailed(
                    f"the WebSocket opens, but a ping got no answer within {PING_ANSWER_SECONDS:.0f} s: "
                    "does a proxy block it?"
                )


def _seconds(value: object) -> float:
    return min(float(value), 600.0) if isinstance(value, (int, float)) and value > 0 else 0.0


REMEMBERED = 5000
# The API lists at most this many: a transfer that is not in a full list may still be open.
LIST_LIMIT, STAGED_LIST_LIMIT = 100, 1000
MISSED_POLLS_UNTIL_CANCELLED = 2
# The index of an inbox may list a transfer for so long after the API has accepted its result.
INDEX_LAG = 2.0


def key_of(item: Transfer | TransferResult) -> Key:
    return item["transfer_id"], item.get("container_id") or ""


def is_truncated(items: Iterable[Transfer]) -> bool:
    """Returns whether the API may have more transfers than it listed.

    The API has one limit for transfers to download and another one for staged transfers."""
    staged = [bool(item.get("staged_at")) for item in items]
    return staged.count(False) >= LIST_LIMIT or staged.count(True) >= STAGED_LIST_LIMIT


class Inbox:
    """The agent's open transfers, with their progress and their current URLs."""

    def __init__(self, trigger_poll: Callable[[], None] = lambda: None) -> None:
        """Creates an empty inbox. `trigger_poll` is called when a transfer needs a new URL."""
        self._trigger_poll = trigger_poll
        self._changed = threading.Condition()
        self._urls: dict[Key, str] = {}
        self._missed: Counter[Key] = Counter()
        self._progress: dict[Key, int] = {}
        self._reported: dict[Key, int] = {}
        # By the monotonic clock, when they were listed first.
        self._began: dict[Key, float] = {}
        # Transfers with a staged file: the result that reports them, and when a poll last listed them.
        self._staged: dict[Key, TransferResult] = {}
        self._staged_reported: set[Key] = set()
        self._listed_at: dict[Key, float] = {}
        # The same by the monotonic clock, which does not jump.
        self._confirmed_at: dict[Key, float] = {}
        # Transfers that were cancelled, as the API said over the WebSocket.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._done: OrderedDict[Key, TransferResult] = OrderedDict()
        # Their results were accepted at this time, by the monotonic clock.
        self._accepted: dict[Key, float] = {}

    def accept_poll(
        self, items: Iterable[Transfer], has_result: Callable[[Key], bool], *, asked_at: float = math.inf
    ) -> tuple[list[Transfer], list[TransferResult]]:
        """Adds the transfers that a poll listed.

        Returns (the new transfers, oldest first; the results to report again). If the API still lists a finished
        transfer, the API seems to have lost the result. The result must be reported again, unless the API accepted it
        while it made the list. `asked_at`: when the poll began, by the monotonic clock.

        `has_result` returns True for a transfer whose result is in the journal and only has to be reported."""
        new: list[Transfer] = []
        repeat: list[TransferResult] = []
        with self._changed:
            listed = {key_of(item): item for item in items}
            # Read the journal before anything changes: after an error no transfer must count as taken.
            in_journal = {key for key in listed if has_result(key)}
            for key, item in listed.items():
                if key in in_journal or self.has_ended(key):
                    continue
                if key in self._done:
                    if self._accepted.get(key, -math.inf) + INDEX_LAG < asked_at:
                        repeat.append(self._done[key])
                    continue
                if key not in self._urls:
                    new.append(item)
                    self._progress[key] = 0
                    self._began[key] = time.monotonic()
                self._urls[key] = item["url"]
                self._listed_at[key] = time.time()
                self._confirmed_at[key] = time.monotonic()
            self._note_missing(listed, is_truncated(listed.values()))
            self._changed.notify_all()
        new.sort(key=lambda item: item.get("sequence") or 0)
        return new, repeat

    def _note_missing(self, listed: Collection[Key], truncated: bool) -> None:
        for key in self._urls:
            if key in listed:
                self._missed.pop(key, None)
            elif not truncated:
                self._missed[key] += 1

    def mark_staged(self, result: TransferResult) -> None:
        """Marks a transfer as downloaded and staged. `result` is the report that tells the API so."""
        key = key_of(result)
        with self._changed:
            self._urls.setdefault(key, "")
            self._progress.pop(key, None)
            self._staged[key] = result

    def has_work(self, items: Iterable[Transfer]) -> bool:
        """Returns whether the API listed a transfer whose file is not staged here."""
        with self._changed:
            return any(key_of(item) not in self._staged for item in items)

    def listed_at(self, key: Key) -> float | None:
        """Returns when a poll last listed the transfer, by the host's clock."""
        with self._changed:
            return self._listed_at.get(key)

    def is_cancelled(self, key: Key) -> bool:
        """Returns whether the transfer was cancelled: the API said so, or two polls in a row did not list it.

        One poll is not enough, because the API's index may be a moment behind."""
        with self._changed:
            return self._is_cancelled(key)

    def _is_cancelled(self, key: Key) -> bool:
        return self._missed[key] >= MISSED_POLLS_UNTIL_CANCELLED or self.has_ended(key)

    def has_ended(self, key: Key) -> bool:
        """Whether the API has said that the transfer was cancelled."""
        # A host that has replaced another one knows transfers by longer ids.
        return key[0].partition("~")[0] in self._ended

    def end(self, transfer_id: str) -> None:
        """Marks a transfer as cancelled. Polls may still list it for a moment."""
        with self._changed:
            self._ended[transfer_id] = None
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
            self._changed.notify_all()

    def unconfirmed_seconds(self, key: Key) -> float:
        """Returns how many seconds ago a poll last listed the transfer."""
        with self._changed:
            return time.monotonic() - self._confirmed_at.get(key, float("-inf"))

    def url(self, key: Key) -> str:
        with self._changed:
            return self._urls[key]

    def wait_for_new_url(self, key: Key, stale: str, wait: float, stopping: threading.Event) -> str:
        """Waits until a poll brings a new URL, and returns that URL.

        Raises Cancelled if the transfer is cancelled or the agent stops, and Stalled after `wait` seconds."""
        self._trigger_poll()
        deadline = time.monotonic() + wait
        with self._changed:
            while self._urls[key] == stale:
                if stopping.is_set() or self._is_cancelled(key):
                    raise Cancelled
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Stalled(f"S3 refused the URL, and no poll returned a new one within {wait:.0f} s", status=403)
                self._changed.wait(min(left, 0.5))
            return self._urls[key]

    def advance(self, key: Key, percent: int) -> None:
        with self._changed:
            self._progress[key] = percent

    def unreported(self, after: float = 0.0) -> list[TransferResult]:
        """Returns the reports that the API does not have yet: staged files, and the progress of transfers.

        The progress of a transfer is reported once the transfer is older than `after` seconds. A younger transfer may
        be over before the next report, and then its result is enough."""
        with self._changed:
            young = time.monotonic() - after
            progress = [
                (key, percent)
                for key, percent in self._progress.items()
                if self._reported.get(key) != percent and self._began.get(key, -math.inf) <= young
            ]
            staged = [result for key, result in self._staged.items() if key not in self._staged_reported]
        return staged + [
            {
                "transfer_id": transfer_id,
                "container_id": container_id,
                "error_code": Code.IN_PROGRESS,
                "progress": percent,
            }
            for (transfer_id, container_id), percent in progress
        ]

    def mark_reported(self, results: Iterable[TransferResult]) -> None:
        """Remembers that the API has accepted these reports."""
        with self._changed:
            for result in results:
                key = key_of(result)
                # Progress that was reported before the file was staged does not report the staging.
                if key in self._staged and result.get("staged_at"):
                    self._staged_reported.add(key)
                elif key in self._progress:
                    self._reported[key] = result.get("progress", 0)

    def finish(self, result: TransferResult) -> None:
        """Closes a transfer, and keeps its result in case the API loses it."""
        key = key_of(result)
        with self._changed:
            self._forget(key)
            self._done[key] = result
            if len(self._done) > REMEMBERED:
                self._accepted.pop(self._done.popitem(last=False)[0], None)

    def mark_accepted(self, results: Iterable[TransferResult]) -> None:
        """Notes that the API has accepted the results of these transfers."""
        with self._changed:
            self._accepted |= {key: time.monotonic() for result in results if (key := key_of(result)) in self._done}

    def drop(self, key: Key) -> None:
        """Forgets a transfer. If a poll lists the transfer again, it counts as new."""
        with self._changed:
            self._forget(key)

    def active(self) -> int:
        """Returns the number of open transfers."""
        with self._changed:
            return len(self._urls) - len(self._staged)

    def _forget(self, key: Key) -> None:
        self._urls.pop(key, None)
        self._progress.pop(key, None)
        self._began.pop(key, None)
        self._reported.pop(key, None)
        self._missed.pop(key, None)
        self._staged.pop(key, None)
        self._staged_reported.discard(key)
        self._listed_at.pop(key, None)
        self._confirmed_at.pop(key, None)


# Another host uses this agent id.
DUPLICATE = "agent_duplicate"
RESULTS_A_CALL = 100
# Well below the time without a beat after which the agent counts as unhealthy.
LONGEST_SPREAD = 60.0
# How long the thread may take to end when it is stopped, if it is not in a call.
END_SECONDS = 1.0
# Optional fields, which an older API refuses.
FIGURES = frozenset({"size", "speed", "start_time", "end_time", "swarm", "staged_at"})


class Reporter:
    """Sends all reports from one thread, so that older progress never follows a final result."""

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
        """Delays reports by about `seconds`, at random, so that the hosts of a large Job do not all report at once."""
        self._spread = min(float(seconds), LONGEST_SPREAD)

    def finished(self, result: TransferResult) -> None:
        """Stores the result in the journal, closes the transfer and starts a report."""
        self._store(result)
        self._inbox.finish(result)
        self._wake.set()

    def wake(self) -> None:
        """Starts a report at once."""
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
        """Returns the number of results that the API has not accepted yet."""
        return self._journal.pending_count() + self.unsaved()

    def drain(self, deadline: float) -> bool:
        """Sends the remaining results until the deadline, then ends the thread.

        Returns False if some results are left. They stay in the journal."""
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
            self._inbox.mark_accepted(results)
            self._journal.acknowledge(key_of(result) for result in results)
        # A file that arrives within seconds is reported once.
        for start in range(0, len(reports := self._inbox.unreported(2 * self._every)), RESULTS_A_CALL):
            self._send(some := reports[start : start + RESULTS_A_CALL])
            self._inbox.mark_reported(some)

    def _has_unreported(self) -> bool:
        """Returns whether there are results to report.

        Returns True if the journal cannot be read, because it may have some."""
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
            if error.code == DUPLICATE:
                # It refuses this host, not the results: they are kept.
                raise
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
