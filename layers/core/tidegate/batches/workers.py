"""Calls to the business: the signed call, the log lines, and the worker threads of a slice."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from aws_lambda_powertools import Logger

from tidegate.batches.items import DataItems, Items, ParsedAnswer, invalid_answer, read_answer
from tidegate.batches.model import (
    ASYNC,
    Batch,
    BatchLogLine,
    BatchProgress,
    Business,
    ItemCall,
    ItemOutcome,
    ItemResult,
    Verdict,
    in_order,
)
from tidegate.batches.run_state import RunState
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import slices
from tidegate.errors import FetchError, NotSent, TooManyRequests, UrlNotAllowed
from tidegate.http.connections import KeptConnection
from tidegate.http.model import Limits, Reply, error_for
from tidegate.projects.model import Project
from tidegate.queue.model import LONGEST_RETRY_AFTER

if TYPE_CHECKING:
    from tidegate.batches import Batches

# --- log lines
# Log lines of a slice: gathered by its workers, written by a separate thread.
#
# So a slow write of log lines does not delay the saves of the progress, a stop or the renewal of the lease.

logger = Logger(service="tidegate", child=True)

MOST_LINES_WAITING = 5000
_PORTION = 25
_WRITERS = 4
_EVERY = 0.5


class LogLines:
    def __init__(self, make: Callable[[str, str, int | None], BatchLogLine]) -> None:
        """`make` returns a line from level, message and index."""
        self._make = make
        self._lock = threading.Lock()
        self._lines: list[BatchLogLine] = []
        self._dropped = 0

    def add(self, index: int | None, messages: Sequence[tuple[str, str]]) -> None:
        """Adds (level, message) pairs. While too many lines wait to be written, drops the new lines and counts them."""
        lines = in_order([self._make(level, message, index) for level, message in messages])
        with self._lock:
            if len(self._lines) > MOST_LINES_WAITING:
                self._dropped += len(lines)
            else:
                self._lines += lines

    def drain(self) -> list[BatchLogLine]:
        with self._lock:
            lines, self._lines = self._lines, []
            dropped, self._dropped = self._dropped, 0
        if dropped:
            lines.append(self._make("warning", f"{dropped} log lines came too fast and were dropped", None))
        return lines

    def put_back(self, lines: list[BatchLogLine]) -> None:
        with self._lock:
            self._lines = lines + self._lines


class LogWriter:
    def __init__(self, lines: LogLines, write: Callable[[Sequence[BatchLogLine]], None]) -> None:
        self._lines = lines
        self._write = write
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Writes the remaining lines, for at most `seconds`."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="log") as pool:
            while not self._closing.wait(_EVERY):
                self._flush(pool)
            for _ in range(3):
                if self._flush(pool):
                    return
                time.sleep(_EVERY)

    def _flush(self, pool: ThreadPoolExecutor) -> bool:
        lines = self._lines.drain()
        portions = list(slices(lines, _PORTION))
        unwritten: list[BatchLogLine] = []
        for portion, written in zip(portions, [pool.submit(self._write, portion) for portion in portions], strict=True):
            try:
                written.result()
            except Exception:
                logger.exception("log lines of a batch could not be written and are retried")
                unwritten += portion
        if unwritten:
            self._lines.put_back(unwritten)
        return not unwritten


_HEADERS = {"content-type": "application/json", "user-agent": "tidegate/1"}
_MOST_BYTES = 256 * 1024
# Each further part of this size in the body counts as one more call: bytes that leave AWS cost more than the call.
CALL_BYTES = 16 * 1024
# With asynchronous results, the call only hands the item over.
_HAND_OVER_SECONDS = 30

Change = Callable[[RunState, float], None]
# An item as the business gets it: index, attempt and data.
Entry = Mapping[str, Any]


class ItemCaller:
    """Calls the business with items: sends their data with a signature, parses the answers, gathers log lines."""

    def __init__(self, b: Batches, batch: Batch, project: Project, business: Business) -> None:
        # As it was last read: its options may change.
        self.batch = batch
        # The limit of the business for all its batches together.
        self.shared_rate = business.rate
        self._b = b
        self._url = business.process_url
        self._project = project
        self.log = LogLines(self._log_line)
        self.items: Items = DataItems(lambda: None)
        self._counting = threading.Lock()
        # How many calls were made, as the quota `outgoing_calls_per_day` counts them.
        self.calls = 0

    def connect(self, max_seconds: float = inf) -> KeptConnection:
        return self._b.http.line(
            self._url,
            allow_private=self._project.allow_private_urls,
            limits=self._limits(max_seconds),
            project_id=self.batch.project_id,
        )

    def _limits(self, max_seconds: float = inf) -> Limits:
        timeout = _HAND_OVER_SECONDS if self.batch.ack == ASYNC else self.batch.item_timeout
        seconds = min(timeout, max_seconds)
        return Limits(connect=5, read=seconds, total=seconds, max_bytes=_MOST_BYTES * (4 if self._grouped else 1))

    def call(self, connection: KeptConnection, calls: Sequence[ItemCall]) -> Change:
        """Sends these items in one POST. Returns the change to apply to the state."""
        items = self.items
        entries = [{"index": items.index(c.index), "attempt": c.attempt} | items.fields(c.index) for c in calls]
        now = self._b.clock()
        # The batch's item_timeout may have changed.
        connection.limits = self._limits()
        try:
            reply = self._post(connection, entries, now)
            if self.batch.ack == ASYNC and reply.status == 202:
                return lambda state, now: self._await(state, calls, now)
            answers = self._read(reply, entries, now)
        except UrlNotAllowed as error:
            reason = error.detail
            return lambda state, _: state.halt(f"the process URL may not be called: {reason}", failed=True)
        except NotSent as error:
            wait = error.retry_after or 1.0
            return lambda state, now: _postpone(state, calls, now + wait)
        except FetchError as error:
            answers = [failed_answer(error)] * len(calls)
        for call, entry, answer in zip(calls, entries, answers, strict=True):
            self.log_answer(entry["index"], call.attempt, answer)
        return lambda state, now: _record(state, calls, answers, now)

    def dry_call(self, connection: KeptConnection, entries: Sequence[Entry]) -> list[ParsedAnswer]:
        """Makes a call for a dry run and returns the answers. The body says that it is a dry run. Changes no state."""
        now = self._b.clock()
        try:
            return self._read(self._post(connection, entries, now, dry_run=True), entries, now)
        except FetchError as error:
            return [failed_answer(error)] * len(entries)

    @property
    def _grouped(self) -> bool:
        return self.batch.items_per_call > 1

    def _post(
        self, connection: KeptConnection, entries: Sequence[Entry], now: datetime, *, dry_run: bool = False
    ) -> Reply:
        body = call_body(self.batch.batch_id, entries, grouped=self._grouped, dry_run=dry_run)
        with self._counting:
            self.calls += 1 + len(body) // CALL_BYTES
        message_id = self._message_id([entry["index"] for entry in entries]) + (".dry" if dry_run else "")
        return connection.post(body, _HEADERS | self._b.sign(self._project, message_id, now, body, url=self._url))

    def _message_id(self, indexes: Sequence[int]) -> str:
        """Returns the id of a call with these items, by which receivers recognise a repeated call.

        The id is the same for every attempt at these items, and another one for all other items.
        """
        first, count = indexes[0], len(indexes)
        message_id = f"{self.batch.batch_id}.{first}"
        if not self._grouped:
            return message_id
        if list(indexes) == list(range(first, first + count)):
            return f"{message_id}-{count}"
        digest = hashlib.sha256(",".join(map(str, indexes)).encode()).hexdigest()[:16]
        return f"{message_id}-{count}.{digest}"

    def _read(self, reply: Reply, entries: Sequence[Entry], now: datetime) -> list[ParsedAnswer]:
        return read_reply(reply, now, [entry["index"] for entry in entries], grouped=self._grouped)

    def _await(self, state: RunState, calls: Sequence[ItemCall], now: float) -> None:
        for call in calls:
            state.await_result(call, now + self.batch.item_timeout)

    def log_answer(self, index: int, attempt: int | None, parsed: ParsedAnswer) -> None:
        """Adds the log lines of an answer. If the item did not succeed, also adds a line that says so."""
        lines = list(parsed.lines)
        if parsed.answer.result != "ok":
            verb = "failed" if parsed.answer.result == "error" else "was abandoned"
            which = f" at attempt {attempt}" if attempt else ""
            lines.append(("error", f"item {index} {verb}{which}: {parsed.answer.detail or 'no reason given'}"))
        if lines:
            self.log.add(index, lines)

    def _log_line(self, level: str, message: str, index: int | None) -> BatchLogLine:
        now = self._b.clock()
        return BatchLogLine(new_id("log", now), iso(now), message, index, level)


def call_body(batch_id: str, items: Sequence[Mapping[str, Any]], *, grouped: bool, dry_run: bool = False) -> bytes:
    """Returns the body of a call: its `items` if the batch sends groups, else the fields of its one item."""
    body: dict[str, Any] = {"batch_id": batch_id} | ({"items": list(items)} if grouped else dict(items[0]))
    if dry_run:
        body["dry_run"] = True
    # ASCII with escapes, because a row may contain a lone surrogate, which UTF-8 cannot encode.
    return json.dumps(body, separators=(",", ":")).encode()


def read_reply(reply: Reply, now: datetime, indexes: Sequence[int], *, grouped: bool) -> list[ParsedAnswer]:
    """Returns the answer for each of these items. Grouped answers are in `results`, by `index` or in call order."""
    error = error_for(reply.status, reply.headers, now)
    if error is not None:
        return [failed_answer(error)] * len(indexes)
    try:
        answer = reply.json()
    except ValueError:
        answer = None
    if not grouped:
        return [read_answer(answer)]
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        return [invalid_answer(f"the answer to {len(indexes)} items is not {{results: […]}}")] * len(indexes)
    entries = [entry for entry in results if isinstance(entry, dict)]
    by_index = {entry["index"]: entry for entry in entries if isinstance(entry.get("index"), int)}
    if not by_index and len(results) == len(indexes):
        return [read_answer(entry) for entry in results]
    return [
        read_answer(by_index[index]) if index in by_index else invalid_answer(f"`results` lacks item {index}")
        for index in indexes
    ]


def failed_answer(error: FetchError) -> ParsedAnswer:
    """Returns the answer that a failed call gives to each of its items.

    `down` is set if the error is retryable, except after status 429.
    """
    down = error.retryable and not isinstance(error, TooManyRequests)
    wait = None if error.retry_after is None else min(error.retry_after, LONGEST_RETRY_AFTER)
    return ParsedAnswer(ItemResult("error", error.detail, retry_after=wait, down=down))


def _record(state: RunState, calls: Sequence[ItemCall], answers: Sequence[ParsedAnswer], now: float) -> None:
    for call, parsed in zip(calls, answers, strict=True):
        state.record(call, parsed.answer, now)


def _postpone(state: RunState, calls: Sequence[ItemCall], at: float) -> None:
    for call in calls:
        state.postpone(call, at)


# Upper bound for waiting on the rate, so that a stop is noticed soon.
_LONGEST_SLEEP = 0.2
# At high rates, wait for several tokens at once: waking up costs more than a call.
_SHORTEST_SLEEP = 0.004
_FULL_POLL = 0.005
_MEASURE_EVERY = 0.01
_ADD_EVERY = 0.1
# Above this share of a core the interpreter is the bottleneck, and another thread would only slow it down.
_CORE_IS_FULL = 0.9
# How many threads may wait for work; the others are parked until they are needed.
_MOST_IDLE = 2


T = TypeVar("T")


class WorkerPool:
    """The worker threads of a slice.

    Each thread takes the next call when the rate allows it, makes the call and records the answer. Adds threads while
    none is free for the next call: a fast business needs few of them, a slow one many.
    """

    def __init__(
        self, state: RunState, work: ItemCaller, max_workers: int, lease_end: float, now: Callable[[], float]
    ) -> None:
        """`now` returns epoch seconds that never go back; `lease_end` is a moment of `time.monotonic`."""
        self._state = state
        self._work = work
        self._max_workers = max_workers
        # At this time the workers stop by themselves; each renewal of the lease moves it.
        self.lease_end = lease_end
        self._now = now
        self._lock = threading.Lock()
        # One worker at a time waits for the rate; the others block on this lock without waking up.
        self._gate = threading.Lock()
        self._unpark = threading.Condition(self._lock)
        self._parked = 0
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._working = 0
        self._calling = 0
        self._measured_at = (time.monotonic(), time.process_time())
        self._busy = 0.0
        self._added_at = 0.0
        # The fastest call of this second and of the last one: the time that the business itself needs.
        self._fastest = [inf, inf]
        self._failure: BaseException | None = None
        # Set when all threads have ended.
        self.done = threading.Event()

    def start(self) -> None:
        with self._lock:
            self._add_worker()

    @property
    def verdict(self) -> Verdict | None:
        with self._lock:
            return self._state.verdict

    def snapshot(self) -> tuple[BatchProgress, list[ItemOutcome]]:
        """Returns (progress, outcomes since the last snapshot). The progress counts these outcomes."""
        with self._lock:
            state = self._state
            outcomes, state.outcomes = state.outcomes, []
            progress = BatchProgress(
                state.window.state(), state.current_counts, verdict=state.verdict, carried=state.carry()
            )
            return progress, outcomes

    def idle_until(self) -> float | None:
        """Returns when there is something to do next; None while calls are under way or after the end."""
        with self._lock:
            if self._calling or self._state.over:
                return None
            return self._state.next_at(self._now())

    def resize(self, max_workers: int) -> None:
        """Sets the largest number of threads, and adds a thread if none is free. Called once a second."""
        with self._lock:
            self._max_workers = max_workers
            self._fastest = [inf, self._fastest[0]]
            if self._idle == 0 and not self._over() and self._needs_more():
                self._add_worker()

    def change(self, change: Callable[[RunState, float], T]) -> T:
        with self._lock:
            return change(self._state, self._now())

    def join(self) -> None:
        """Call it after `done`. Raises the error of a worker: a bug or an AWS error, never one of the business."""
        for thread in self._threads:
            thread.join()
        if self._failure:
            raise self._failure

    def _needs_more(self) -> bool:
        if not self._parked and len(self._threads) >= self._max_workers:
            return False
        wall, cpu = time.monotonic(), time.process_time()
        elapsed = wall - self._measured_at[0]
        if elapsed >= _MEASURE_EVERY:
            self._busy = (cpu - self._measured_at[1]) / elapsed
            self._measured_at = (wall, cpu)
        if self._busy >= _CORE_IS_FULL:
            return False
        calls_a_second = self._state.rules.rate / self._state.rules.items_per_call
        if self._calling <= 2 + 2 * calls_a_second * min(self._fastest):
            return True
        # Add slowly: some calls may be slower than the fastest, or the machine lacks CPU and threads do not help.
        return self._state.behind and wall > self._added_at + _ADD_EVERY

    def _add_worker(self) -> None:
        self._added_at = time.monotonic()
        if self._parked:
            self._unpark.notify()
            return
        thread = threading.Thread(target=self._work_loop, name=f"batch-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._working += 1
        thread.start()

    def _work_loop(self) -> None:
        try:
            connection = self._work.connect()
            try:
                while (calls := self._wait_for_calls()) is not None:
                    began = time.monotonic()
                    change = self._work.call(connection, calls)
                    with self._lock:
                        self._calling -= 1
                        self._fastest[0] = min(self._fastest[0], time.monotonic() - began)
                        change(self._state, self._now())
            finally:
                connection.close()
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
                self._state.paused = True
        finally:
            with self._lock:
                self._working -= 1
                self._unpark.notify_all()
                if self._working == 0:
                    self.done.set()

    def _wait_for_calls(self) -> tuple[ItemCall, ...] | None:
        with self._lock:
            while self._idle >= _MOST_IDLE and not self._over():
                self._parked += 1
                self._unpark.wait()
                self._parked -= 1
            self._idle += 1
        with self._gate:
            while isinstance(step := self._next(), float):
                time.sleep(min(max(step, _SHORTEST_SLEEP), _LONGEST_SLEEP))
        return step

    def _next(self) -> tuple[ItemCall, ...] | float | None:
        with self._lock:
            if self._calling >= self._max_workers and not self._over():
                return _FULL_POLL
            step = self._state.next(self._now()) if self._holds_lease else None
            if isinstance(step, float):
                return step
            self._idle -= 1
            if step is None:
                self._unpark.notify_all()
                return None
            self._calling += 1
            if self._idle == 0 and self._needs_more():
                self._add_worker()
            return step

    def _over(self) -> bool:
        return not self._holds_lease or self._state.over

    @property
    def _holds_lease(self) -> bool:
        return time.monotonic() < self.lease_end


def steady_clock(clock: Clock) -> Callable[[], float]:
    """Returns a clock of epoch seconds that never goes back, even if the machine's clock does."""
    difference = clock().timestamp() - time.monotonic()
    return lambda: difference + time.monotonic()
