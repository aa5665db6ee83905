"""Records and values of batches: businesses, batches, items, runners, their states and their progress. Does no I/O."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from tidegate.common.ids import iso
from tidegate.errors import WrongState
from tidegate.records import F, Priority, Text, Url, view_of

DAY = 24 * 3600
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class PauseWindow(NamedTuple):
    """Times of day at which a batch makes no calls.

    Seconds since midnight UTC. A window that ends before it starts continues past midnight.
    """

    start: int
    end: int

    def view(self) -> dict[str, str]:
        return {name: f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}" for name, seconds in self._asdict().items()}


def seconds_of_day(text: str) -> int:
    """Returns the seconds since midnight: 34200 for `"09:30"`. Raises ValueError if the text is not a time of day."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time of day like 09:30")
    return int(found[1]) * 3600 + int(found[2]) * 60


def paused_until(windows: Sequence[PauseWindow], now: float) -> float:
    """Returns the earliest time, from `now` on, at which calls may be made.

    Within a pause window, this is the end of the window. If several windows follow each other without a gap, it is the
    end of the last one.
    """
    until = now
    # Each window can extend the pause once.
    for _ in range(len(windows) + 1):
        moved = max((_end(window, until) for window in windows), default=until)
        if moved <= until:
            break
        until = moved
    return until


def time_after_calls(windows: Sequence[PauseWindow], now: float, seconds: float) -> float:
    """Returns when calls that take `seconds` in total are over, if they begin now and rest during the windows.

    Returns infinity if the windows leave no time for calls.
    """
    begin = at = paused_until(windows, now)
    # (start, seconds) of each time between two pauses within the next 24 hours. The same times return every day.
    spans = list[tuple[float, float]]()
    while at < begin + DAY:
        pauses = (at + (window.start - at) % DAY for window in windows if window.start != window.end)
        until = min([begin + DAY, *pauses])
        spans.append((at, until - at))
        at = max(paused_until(windows, until), until)
    of_a_day = sum(length for _, length in spans)
    if not of_a_day:
        return math.inf
    days = max(0, math.ceil(seconds / of_a_day) - 1)
    left = seconds - days * of_a_day
    for begun, length in spans:
        at = begun + days * DAY + left
        if left <= length:
            break
        left -= length
    return at


def _end(window: PauseWindow, now: float) -> float:
    since_start = (now - window.start) % DAY
    length = (window.end - window.start) % DAY
    return now + length - since_start if since_start < length else now


# --- share
# Which items of a batch belong to which of its runners.
#
# The items are divided into blocks, and each of n runners takes every nth block. So the owner of an item is known even
# while the rows of a file are still being counted, and the batch as a whole proceeds from its first item to its last.
# Each runner numbers its own items from 0: these numbers are called positions.

BLOCK_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Share:
    runner: int = 0
    runners: int = 1
    block: int = BLOCK_ITEMS

    def index(self, position: int) -> int:
        """Returns the index, within the batch, of this runner's item at `position`."""
        block, place = divmod(position, self.block)
        return (block * self.runners + self.runner) * self.block + place

    def below(self, limit: int) -> int:
        """Returns how many of this runner's items come before index `limit`.

        If this runner has the item with that index, the result is the position of the item.
        """
        rounds, turn = divmod(limit // self.block, self.runners)
        rest = self.block if turn > self.runner else limit % self.block if turn == self.runner else 0
        return rounds * self.block + rest

    def owner(self, index: int) -> int:
        """Returns the number of the runner that calls the item."""
        return index // self.block % self.runners

    def owns(self, index: int) -> bool:
        return self.owner(index) == self.runner


# --- values
# Values of a run: calls, answers, outcomes, verdicts, and the state that one slice hands over to the next.
#
# In this section, an item's `index` is its position among the items of its runner (see `Share`).

# States of items that did not succeed at their first attempt.
FAILED, ABANDONED, RECOVERED = "failed", "abandoned", "recovered"
# Only in reports: an item that succeeded at its first attempt.
SUCCEEDED = "succeeded"
WINDOW_SECONDS = 10
# Limit for items of one runner that were called and are not done: they must fit into its record.
MOST_OPEN = 20_000
# After calls of this many new items in a row without an answer, the business counts as down.
MOST_UNANSWERED = 5


class Extent(NamedTuple):
    """How many items are known so far. `complete`: there are no more."""

    items: int
    complete: bool = True


# Not frozen: one is made for each item, and a frozen one takes three times as long.
@dataclass(slots=True)
class ItemCall:
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The business's answer for one item: `ok`, `error` or `abandon`, and whether to end the batch."""

    result: str
    detail: str = ""
    stop: str | None = None
    retry_after: float | None = None
    # There was no answer: no connection, a time-out, or a status from 500 on.
    down: bool = False

    def view(self) -> dict[str, Any]:
        fields = {"result": self.result, "msg": self.detail, "stop": self.stop}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Decision:
    """How one call of an item of an asynchronous batch ended. `answer` is None while the result may still come.

    `number` counts the calls of the item over all runs. `attempt` is the number that the business got with the call. It
    starts again at 1 if the item's failure stopped the batch and the batch was then started again.
    """

    index: int
    number: int
    attempt: int
    answer: ItemResult | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a batch ended."""

    status: str
    reason: str | None = None
    # Ended by a failure, not because somebody asked for it.
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """How an item ended. Only items that failed, were abandoned or needed retries have an outcome.

    With a report, all items that ended have one.
    """

    index: int
    state: str
    attempts: int
    answer: ItemResult
    # Epoch seconds.
    at: float = 0.0
    # False: the item's failure stops the batch, and the next start calls the item again.
    done: bool = True


@dataclass(frozen=True, slots=True)
class OpenItem:
    """An item that was called and is not done: it waits for its next attempt or for its asynchronous result."""

    index: int
    # The next attempt; with `awaiting`, the attempt that was made.
    attempt: int
    # Epoch seconds: the earliest time of the next attempt; with `awaiting`, the deadline for the result. 0: its call
    # was under way, and is repeated. Negative: minus the time at which this attempt got no answer (see `Outage`).
    at: float
    awaiting: bool = False


class Outage(NamedTuple):
    """Whether the business is down, as one runner sees it.

    `calls` counts the new items whose calls got no answer since the business last answered. After `MOST_UNANSWERED`
    such calls, the business counts as down, and `since` is set. Then one test call at a time is made, the next one at
    `probe_at`. Between two test calls are `every` seconds.
    """

    calls: int = 0
    since: float = 0.0
    probe_at: float = 0.0
    every: float = 0.0


NO_OUTAGE = Outage()


@dataclass(frozen=True, slots=True)
class Carried:
    """What the next slice of a runner gets besides the window.

    With it, the slice continues the rate and the retries.
    """

    tokens: float = 1.0
    tokens_at: float | None = None
    open_items: tuple[OpenItem, ...] = ()
    # Items whose failure stopped an earlier run, with the number of their calls until then. If they succeed later,
    # their outcome becomes `recovered`.
    reopened: Mapping[int, int] = field(default_factory=dict)
    outage: Outage = NO_OUTAGE
    # `Rules.delays` when the items began to wait for their retry. None: saved by an older version.
    delays: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    failed: int = 0
    abandoned: int = 0
    # Failed calls, including those whose retry succeeded.
    failed_calls: int = 0


@dataclass(slots=True)
class Rules:
    """How one runner calls items: its rate, retries and limits."""

    rate: float
    retries: int = 5
    retry_delay: float = 3.0
    backoff: Backoff | None = None
    max_errors: int | None = None
    skip_failed: bool = False
    max_failed: int | None = None
    max_failed_percent: float | None = None
    items_per_call: int = 1
    item_seconds: float = WINDOW_SECONDS
    # How many items may be called and unanswered at once; None: as many as the window holds.
    most_open: int | None = None
    # How many calls may be under way at once; None: any number.
    most_calls: int | None = None
    pause_windows: tuple[PauseWindow, ...] = ()

    @property
    def window_size(self) -> int:
        """How many items the window holds: enough for the full rate if each call takes `item_seconds`."""
        wanted = round(self.rate * max(self.item_seconds, WINDOW_SECONDS))
        return max(1, self.items_per_call, min(MOST_OPEN, wanted))

    @property
    def delays(self) -> str:
        """The retry delays as a text, to notice when they were changed."""
        backoff = self.backoff
        numbers = [backoff.base, backoff.factor, backoff.max, backoff.jitter] if backoff else [self.retry_delay]
        return " ".join(f"{number:g}" for number in numbers)

    def delay(self, index: int, attempt: int) -> float:
        """Returns how many seconds after this attempt the next attempt is due."""
        return self.backoff.delay(index, attempt) if self.backoff else self.retry_delay

    def exceeded(self, errors: int, total: int | None) -> str | None:
        """Returns why this many unsuccessful items end the batch; None if the limits allow them.

        The limit in percent needs a known total.
        """
        if self.max_errors is not None and errors >= self.max_errors:
            return f"max_errors reached: {errors} items did not succeed"
        if self.max_failed is not None and errors > self.max_failed:
            return f"{errors} items did not succeed, and max_failed allows {self.max_failed}"
        percent = self.max_failed_percent
        if percent is not None and total is not None and errors * 100 > percent * total:
            allowed = f"max_failed_percent allows {percent:g} % of {total}"
            return f"{errors} items did not succeed, and {allowed}"
        return None


# --- model
# Batches and the businesses that process their items: records, states and transitions.

CREATED, WAITING_BIZ, RUNNING = "created", "waiting_biz", "running"
STOPPING, STOPPED, FINISHED = "stopping", "stopped", "finished"

# Each action: the states that it is allowed in, with the state that it leads to.
TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    "start": {CREATED: RUNNING, STOPPED: RUNNING},
    "ask_business": {CREATED: WAITING_BIZ, STOPPED: WAITING_BIZ},
    "biz_start": {WAITING_BIZ: RUNNING},
    "stop": {RUNNING: STOPPING, WAITING_BIZ: STOPPED, STOPPING: STOPPING},
}
ACTIVE = frozenset({RUNNING, STOPPING})
ENDED = frozenset({STOPPED, FINISHED})
# The `due_kind` of an ended batch: it is due when its retention is over.
BATCH_ENDED = "batch_ended"
BIZ_WAIT_SECONDS = 30 * 60
# A batch that nobody starts for this long is deleted.
UNSTARTED_KEPT_SECONDS = 30 * 24 * 3600
ASK_AGAIN_SECONDS = 60
LOWEST_RATE = 0.001
HIGHEST_RATE = 100_000
MOST_WORKERS = 256
DEFAULT_WORKERS = 128
ITEM_TIMEOUT = 30
LONGEST_ITEM_TIMEOUT = 900
# A function may run 900 s: it must receive the answer and save it within that time.
LONGEST_SYNC_ITEM_TIMEOUT = 600
MOST_ITEMS_PER_CALL = 100
MOST_RUNNERS = 32
MOST_CALLS = MOST_WORKERS * MOST_RUNNERS
STOP, SKIP = "stop", "skip"
SYNC, ASYNC = "sync", "async"


def next_state(action: str, status: str) -> str:
    """Returns the state that the action leads to. Raises WrongState if the action is not allowed in this state."""
    allowed = TRANSITIONS[action]
    if status not in allowed:
        raise WrongState(
            f"cannot {action.replace('_', ' ')}: the batch is {status}, and must be {' or '.join(sorted(allowed))}"
        )
    return allowed[status]


Rate = Annotated[float, F(ge=LOWEST_RATE, le=HIGHEST_RATE)]
Index = Annotated[int, F(ge=0, le=10**15)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBusiness:
    """What a caller gives to register a business, except its auth_code."""

    name: Annotated[Text, F("a name for people")]
    process_url: Annotated[Url, F("gets a signed POST for every item")]
    before_create_url: Annotated[Url | None, F("called before a batch is created; may refuse it")] = None
    before_run_url: Annotated[Url | None, F("called before a batch runs; the batch then waits for `biz-start`")] = None
    process_stop_url: Annotated[Url | None, F("called when a batch has ended or was stopped")] = None
    rate: Annotated[Rate | None, F("items per second, shared by all its batches")] = None

    @property
    def urls(self) -> dict[str, str | None]:
        names = ("process_url", "before_create_url", "before_run_url", "process_stop_url")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Business(NewBusiness):
    biz_id: Annotated[str, F("id of the business, for POST /v1/batches")]
    project_id: str
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")]
    auth_code_sha256: str | None = None

    @property
    def has_auth_code(self) -> Annotated[bool, F("whether an auth_code is set; the code itself is never shown")]:
        return self.auth_code_sha256 is not None

    def accepts(self, auth_code: str | None) -> bool:
        if self.auth_code_sha256 is None:
            return True
        return hmac.compare_digest(hash_auth_code(auth_code or ""), self.auth_code_sha256)


def hash_auth_code(auth_code: str) -> str:
    return hashlib.sha256(auth_code.encode()).hexdigest()


UTF8, UTF16, GZIP = "utf-8", "utf-16", "gzip"
# How callers name a file of rows.
SOURCE_FIELDS = ("file_id", "format", "encoding", "delimiter", "compression", "s3_prefix", "s3_inventory")


class RowText(NamedTuple):
    """The format, encoding and delimiter of a text with rows."""

    format: str
    encoding: str = UTF8
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class RowSource:
    """Where the items of a batch come from: the rows of a file in the library, or the objects of a bucket."""

    file_id: Annotated[str | None, F("id of the file in the library")] = None
    signature: Annotated[str | None, F("SHA-256 of the content, 64 hexadecimal digits")] = None
    format: Annotated[str, F("`csv` or `ndjson`; `ndjson` if the items are objects of a bucket")] = "ndjson"
    encoding: Annotated[str, F("encoding of the text")] = UTF8
    delimiter: Annotated[str, F("what separates the values of a CSV row")] = ","
    compression: Annotated[str | None, F("`gzip` if the file is compressed")] = None
    s3_prefix: Annotated[str | None, F("`s3://bucket/prefix`: the objects with this prefix are the items")] = None
    s3_inventory: Annotated[str | None, F("manifest of an S3 inventory, whose objects are the items")] = None

    @property
    def s3_url(self) -> str | None:
        """The s3:// URL of the prefix or inventory that names the items; None if the items are rows of a file."""
        return self.s3_prefix or self.s3_inventory

    @property
    def text(self) -> RowText:
        """Format, encoding and delimiter of the text that is indexed: a file in UTF-16 is first stored as UTF-8."""
        return RowText(self.format, UTF8 if self.encoding == UTF16 else self.encoding, self.delimiter)

    @property
    def is_plain(self) -> bool:
        """Whether ranges of the file itself can be read. Otherwise its text is first stored as another object."""
        return self.compression is None and self.encoding != UTF16


def bucket_and_key(place: str) -> tuple[str, str]:
    """Returns (bucket, key) of `s3://bucket/key`."""
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return bucket, key


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits before the retries of an item, each longer than the one before."""

    base: Annotated[float, F("seconds before the first retry", ge=0, le=3600)]
    factor: Annotated[float, F("each further retry waits this many times as long", ge=1, le=10)] = 2.0
    max: Annotated[float, F("the longest wait, in seconds", ge=0, le=3600)] = 3600.0
    jitter: Annotated[float, F("the part of each wait that is random: 0 (none) to 1 (all of it)", ge=0, le=1)] = 0.0

    def delay(self, index: int, attempt: int) -> float:
        """Returns the seconds to wait after this attempt.

        The result for an item and an attempt is always the same, so that a repeated slice waits as long.
        """
        chance = zlib.crc32(f"{index}.{attempt}".encode()) / 2**32
        return min(self.max, self.base * self.factor ** (attempt - 1)) * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of a batch. A redrive, and each batch of a schedule, has the same options."""

    rate: Annotated[Rate, F("items per second", changes=True)]
    concurrency: Annotated[
        int | None,
        F(
            "parallel calls of process_url, over all runners; default: as many as the rate needs",
            ge=1,
            le=MOST_CALLS,
            changes=True,
        ),
    ] = None
    max_errors: Annotated[
        int | None, F("stop the batch when this many items did not succeed", ge=1, le=10**15, changes=True)
    ] = None
    retries: Annotated[int, F("how often an item is tried", ge=1, le=100, changes=True)] = 5
    retry_delay: Annotated[float, F("seconds before an item is retried", ge=0, le=3600, changes=True)] = 3.0
    backoff: Annotated[Backoff | None, F("waits that grow, instead of `retry_delay`", changes=True)] = None
    priority: Priority = 5
    on_item_failure: Annotated[
        str,
        F(
            "after an item has used up its retries: `stop` the batch, or `skip` the item",
            pattern="^(stop|skip)$",
            changes=True,
        ),
    ] = STOP
    max_failed: Annotated[Index | None, F("stop the batch when more items than this did not succeed", changes=True)] = (
        None
    )
    max_failed_percent: Annotated[
        float | None, F("like `max_failed`, in percent of the total", ge=0, le=100, changes=True)
    ] = None
    item_timeout: Annotated[
        int,
        F(
            "seconds to wait for a result; more than 600 only with ack `async`",
            ge=1,
            le=LONGEST_ITEM_TIMEOUT,
            changes=True,
        ),
    ] = ITEM_TIMEOUT
    ack: Annotated[
        str,
        F(
            "`sync`: the answer of process_url is the result; `async`: it answers 202 and the result is reported later",
            pattern="^(sync|async)$",
        ),
    ] = SYNC
    items_per_call: Annotated[
        int,
        F(
            "items sent to process_url in one call; above 1, it gets `items` and answers `results`",
            ge=1,
            le=MOST_ITEMS_PER_CALL,
        ),
    ] = 1
    runners: Annotated[
        int, F("functions that process the batch in parallel and share its rate", ge=1, le=MOST_RUNNERS)
    ] = 1
    report: Annotated[
        bool, F("record every item, for GET …/results?all=true; each runner then writes one more object a second")
    ] = False
    concurrency_key: Annotated[
        str | None, F("batches with the same key run one after another", pattern=r"^[\w.:/-]{1,100}$")
    ] = None
    pause_windows: Annotated[
        tuple[PauseWindow, ...], F("times of day, in UTC, during which no items are sent", changes=True)
    ] = ()
    progress_url: Annotated[
        Url | None, F("gets the callback `batch.progress`, as often as `progress_every_…` says")
    ] = None
    progress_every_items: Annotated[int | None, F("call progress_url after this many items", ge=1, le=10**15)] = None
    progress_every_percent: Annotated[float | None, F("call progress_url after this many percent", ge=1, le=100)] = None


OPTIONS = tuple(option.name for option in fields(BatchOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItems(BatchOptions):
    """Which items a batch has, and who processes them."""

    biz_id: Annotated[Text, F("id of the registered business that processes the items (POST /v1/biz)")]
    name: Annotated[Text, F("a name for people")]
    total: Annotated[
        Index | None,
        F(
            "the items are `start_index` to `total` - 1; not needed with a list in job_data or with a source, whose "
            "rows or objects are counted"
        ),
    ] = None
    start_index: Annotated[Index, F("index of the first item")] = 0
    note: Annotated[str | None, F("a remark for people; the console finds it", max_length=500, changes="always")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch(BatchItems):
    """What a caller gives to create a batch."""

    job_data: Annotated[Any, F("any JSON; sent to process_url with every item")] = None
    file_id: str | None = None
    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    compression: str | None = None
    s3_prefix: str | None = None
    s3_inventory: str | None = None

    @property
    def has_source(self) -> bool:
        return bool(self.file_id or self.s3_prefix or self.s3_inventory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(BatchItems):
    batch_id: Annotated[str, F("id of the batch")]
    project_id: str
    status: Annotated[str, F("`created`, `waiting_biz`, `running`, `finished`, `stopping` or `stopped`")]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC", shown="create_time")]
    source: Annotated[RowSource | None, F("a file of the library whose rows are the items, or objects of a bucket")] = (
        None
    )
    # Incremented by each start, so that functions of an older run can no longer write.
    run: int = 0
    request_id: Annotated[str | None, F("id of the request in the queue")] = None
    data_version: int = 0
    stop_reason: Annotated[str | None, F("why it stopped")] = None
    # When the business was asked to prepare for the run.
    asked_at: str | None = None
    start_time: Annotated[str | None, F("when it started, ISO 8601 UTC")] = None
    finish_time: Annotated[str | None, F("when it ended, ISO 8601 UTC")] = None
    redrive_of: Annotated[str | None, F("the batch whose failed items this one retries")] = None
    # Whether the project's quota counts it until it is started; batches older than the quota are not counted.
    counted: bool = False
    # Whether the quota `batches` and its business count it; those older than that are not counted.
    counted_in_all: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTIONS}

    def share(self, runner: int) -> Share:
        """Returns a runner's part of the items. Rows of a file are divided into the blocks in which they are read."""
        items = (self.total or 0) - self.start_index
        block = BLOCK_ITEMS if self.source else min(BLOCK_ITEMS, max(1, math.ceil(items / self.runners)))
        return Share(runner, self.runners, block)

    @property
    def rules(self) -> Rules:
        most_open = 1 if self.serial else self.concurrency if self.ack == ASYNC else None
        return Rules(
            rate=self.rate,
            retries=self.retries,
            retry_delay=self.retry_delay,
            backoff=self.backoff,
            max_errors=self.max_errors,
            skip_failed=self.on_item_failure == SKIP,
            max_failed=self.max_failed,
            max_failed_percent=self.max_failed_percent,
            items_per_call=self.items_per_call,
            item_seconds=self.item_timeout if self.ack == ASYNC else 0,
            most_open=most_open,
            pause_windows=self.pause_windows,
        )

    def milestone(self, position: int) -> int:
        """Returns how many times the progress webhook was due up to this position."""
        step = self.progress_every_items or (self.total or 0) * (self.progress_every_percent or 0) / 100
        return int((position - self.start_index) // step) if step else 0

    @property
    def serial(self) -> bool:
        """Whether items are called one at a time; the business may then change `job_data` between two items."""
        return self.rate <= 1 and self.items_per_call == 1 and self.runners == 1

    def workers(self, runners: int = 1) -> int:
        """Returns how many calls each of `runners` runners may have under way."""
        if self.serial:
            return 1
        # Threads are added while calls take long: some calls may take until their time-out.
        wanted = self.concurrency or min(math.ceil(self.rate * self.item_timeout), DEFAULT_WORKERS * runners)
        return min(max(1, wanted // runners), MOST_WORKERS)

    @property
    def takes_data(self) -> bool:
        """Whether `job_data` may be changed now.

        It may be changed before the batch runs and while the batch is stopped. In a running batch that is serial, it
        may be changed between two items.
        """
        return self.status in (CREATED, WAITING_BIZ, STOPPED) or (self.status == RUNNING and self.serial)


@dataclass(frozen=True, slots=True)
class BatchLogLine:
    log_id: Annotated[str, F("id of the line")]
    time: Annotated[str, F("when, ISO 8601 UTC")]
    message: Annotated[str, F("text of the line")]
    index: Annotated[int | None, F("index of the item")] = None
    level: Annotated[str, F("`info`, `warning`, `error` or another word in lower-case letters")] = "info"


def in_order(lines: Sequence[BatchLogLine]) -> list[BatchLogLine]:
    """Returns the lines in the same order.

    Their ids are exchanged among them, so that sorting by id gives this order.
    """
    ids = sorted(line.log_id for line in lines)
    return [replace(line, log_id=log_id) for line, log_id in zip(lines, ids, strict=True)]


def choose_channel(loads: Mapping[str, tuple[int, int]]) -> str:
    """Returns the least loaded channel that has room. If none has room, returns the least loaded channel of all.

    `loads`: (load, capacity) of each channel.
    """
    with_room = [name for name, (load, capacity) in loads.items() if load < capacity]
    return min(with_room or loads, key=lambda name: (loads[name][0], name))


@dataclass(frozen=True, slots=True)
class WindowState:
    """A runner's window as stored. Bit k of the bitmap, lowest bit first, is set if item offset + k is done."""

    offset: int
    bitmap: bytes = b""
    # Items below the offset that are not done, in order.
    aside: tuple[int, ...] = ()

    @property
    def first_open(self) -> int:
        return self.aside[0] if self.aside else self.offset

    @property
    def acknowledged(self) -> int:
        """The number of items above the offset that are done."""
        return int.from_bytes(self.bitmap, "little").bit_count()


# --- progress
# The progress of a batch: of each runner, as stored, and of all runners together.


class ProgressView(NamedTuple):
    """How far a batch is, as callers see it."""

    processed: Annotated[int, F("items that are done, whatever their result")]
    total: Annotated[int | None, F("total number of items")]
    percent: Annotated[float | None, F("progress in percent, 0 to 100")]
    errors: Annotated[int, F("items that did not succeed")]
    succeeded: Annotated[int, F("items that succeeded")]
    failed: Annotated[int, F("how many failed")]
    abandoned: Annotated[int, F("items that the business gave up (`abandon`)")]
    failed_calls: Annotated[int, F("failed calls of process_url, including retried ones")]
    retrying: Annotated[int, F("items that wait for a retry")]
    awaiting: Annotated[int, F("items whose asynchronous result has not been reported yet")]
    rate_now: Annotated[float, F("current number of items per second")]
    offset: Annotated[int, F("all items below this index are done")]
    eta: Annotated[str | None, F("when the batch will be finished at the current rate")]

    def fields(self) -> dict[str, Any]:
        """Returns the progress for JSON. An unknown total is null; `eta` is left out if there is none."""
        return {name: value for name, value in self._asdict().items() if name != "eta" or value is not None}


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of one runner, or of all runners together.

    The progress of a runner is saved every second, and read by the runner's next slice.
    """

    window: WindowState
    counts: Counts = field(default_factory=Counts)
    rate_now: float = 0.0
    verdict: Verdict | None = None
    carried: Carried = field(default_factory=Carried)
    # How many parts of outcomes in S3 are valid.
    outcome_parts: int = 0
    # How many parts of the report in S3 are valid; 0 without a report.
    report_parts: int = 0
    # Epoch seconds: there is nothing to do until then, and no function runs.
    wake_at: float | None = None
    # Epoch seconds: when the last item will be called, at the current pace.
    eta: float | None = None
    # The last milestone for which the progress webhook was sent.
    last_milestone: int = 0
    # With several runners: the first item of the batch that is not done.
    first_open: int | None = None

    @property
    def position(self) -> int:
        return self.window.offset + self.window.acknowledged - len(self.window.aside)

    @property
    def errors(self) -> int:
        return self.counts.failed + self.counts.abandoned

    @property
    def business_is_down(self) -> bool:
        return self.verdict is None and self.carried.outage.since > 0

    def view(self, batch: Batch) -> ProgressView:
        total, done = batch.total, self.position - batch.start_index
        open_items = self.carried.open_items
        has_eta = self.eta is not None and batch.status == RUNNING
        return ProgressView(
            processed=self.position,
            total=total,
            percent=None if total is None else round(100 * self.position / total, 2) if total else 100.0,
            errors=self.errors,
            succeeded=done - self.errors,
            failed=self.counts.failed,
            abandoned=self.counts.abandoned,
            failed_calls=self.counts.failed_calls,
            retrying=sum(1 for item in open_items if item.at and not item.awaiting),
            awaiting=sum(1 for item in open_items if item.awaiting),
            rate_now=self.rate_now,
            offset=self.window.first_open if self.first_open is None else self.first_open,
            eta=iso(datetime.fromtimestamp(self.eta or 0, UTC)) if has_eta else None,
        )


BUSINESS_DOWN = "business_down"


def batch_view(batch: Batch, progress: BatchProgress) -> dict[str, Any]:
    """Returns the batch as callers and callbacks see it."""
    view = view_of(batch) | {"progress": progress.view(batch).fields()}
    if batch.status == RUNNING and progress.business_is_down:
        view["waiting"] = BUSINESS_DOWN
    return {name: value for name, value in view.items() if value != []}


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """The stored record of one runner."""

    progress: BatchProgress
    fence: int
    lease_until: float

    def is_sleeping(self, now: float) -> bool:
        """Whether the runner's state machine waits for the next call. Until then, no function would notice a stop."""
        wake_at = self.progress.wake_at
        return wake_at is not None and wake_at > now and self.lease_until < now


def first_progress(batch: Batch, runner: int) -> BatchProgress:
    """Returns the progress of a runner that has not begun."""
    return BatchProgress(WindowState(batch.share(runner).below(batch.start_index)))


def combined(batch: Batch, runners: Sequence[BatchProgress]) -> BatchProgress:
    """Returns the progress of the whole batch, as callers see it."""
    if len(runners) == 1:
        return runners[0]
    counts = [one.counts for one in runners]
    # The ETA is unknown while that of one runner is unknown: the business is down, or the runner has not begun.
    etas = [math.inf if one.eta is None else one.eta for one in runners if one.verdict is None]
    eta = max(etas, default=math.inf)
    offsets = [batch.share(runner).index(one.window.first_open) for runner, one in enumerate(runners)]
    return BatchProgress(
        WindowState(sum(one.position for one in runners)),
        Counts(
            sum(count.failed for count in counts),
            sum(count.abandoned for count in counts),
            sum(count.failed_calls for count in counts),
        ),
        rate_now=round(sum(one.rate_now for one in runners), 1),
        carried=Carried(
            open_items=tuple(item for one in runners for item in one.carried.open_items),
            outage=max((one.carried.outage for one in runners), key=lambda outage: outage.since),
        ),
        eta=None if eta == math.inf else eta,
        last_milestone=max(one.last_milestone for one in runners),
        first_open=min(*offsets, batch.total) if batch.total is not None else min(offsets),
    )


def common_verdict(runners: Sequence[BatchProgress]) -> Verdict | None:
    """Returns the verdict of the batch, or None while a runner works.

    If the verdicts of the runners differ, a failure takes precedence over a stop, and a stop over `finished`.
    """
    verdicts = [one.verdict for one in runners if one.verdict is not None]
    if len(verdicts) < len(runners):
        return None
    return min(verdicts, key=lambda verdict: (not verdict.failed, verdict.status == FINISHED))


def ends_others(batch: Batch, runner: int, progress: BatchProgress) -> Verdict | None:
    """Returns a runner's verdict if it ends the other runners too; None if it has only finished its own items."""
    verdict = progress.verdict
    if verdict is None or verdict.status != FINISHED:
        return verdict
    own_items_done = batch.total is not None and progress.window.first_open >= batch.share(runner).below(batch.total)
    return None if own_items_done else verdict
