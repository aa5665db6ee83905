"""Batches and the businesses that process their items: records, states and transitions."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tidegate.batches.pause_windows import PauseWindow
from tidegate.batches.run.share import BLOCK_ITEMS, Share
from tidegate.batches.run.values import Rules
from tidegate.errors import WrongState

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
STOP, SKIP = "stop", "skip"
SYNC, ASYNC = "sync", "async"


def next_state(action: str, status: str) -> str:
    allowed = TRANSITIONS[action]
    if status not in allowed:
        raise WrongState(
            f"cannot {action.replace('_', ' ')}: the batch is {status}, and must be {' or '.join(sorted(allowed))}"
        )
    return allowed[status]


@dataclass(frozen=True, slots=True)
class Business:
    biz_id: str
    project_id: str
    name: str
    process_url: str
    created_at: str
    before_create_url: str | None = None
    before_run_url: str | None = None
    process_stop_url: str | None = None
    auth_code_sha256: str | None = None
    # Items per second, for all its batches together.
    rate: float | None = None

    def accepts(self, auth_code: str | None) -> bool:
        if self.auth_code_sha256 is None:
            return True
        return hmac.compare_digest(hash_auth_code(auth_code or ""), self.auth_code_sha256)


def hash_auth_code(auth_code: str) -> str:
    return hashlib.sha256(auth_code.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RowSource:
    """A file in the library whose rows are the items."""

    file_id: str
    signature: str
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch is to be run. A redrive, and each batch of a schedule, has the same options."""

    rate: float
    concurrency: int | None = None
    max_errors: int | None = None
    retries: int = 5
    retry_delay: float = 3.0
    priority: int = 5
    on_item_failure: str = STOP
    max_failed: int | None = None
    max_failed_percent: float | None = None
    item_timeout: int = ITEM_TIMEOUT
    ack: str = SYNC
    items_per_call: int = 1
    runners: int = 1
    # Batches with the same key run one at a time.
    concurrency_key: str | None = None
    # (start, end) in seconds since midnight UTC.
    pause_windows: tuple[tuple[int, int], ...] = ()
    progress_url: str | None = None
    progress_every_items: int | None = None
    progress_every_percent: float | None = None


OPTIONS = tuple(option.name for option in fields(BatchOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch(BatchOptions):
    """What a caller gives to create a batch."""

    biz_id: str
    name: str
    total: int | None = None
    start_index: int = 0
    job_data: Any = None
    file_id: str | None = None
    format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(BatchOptions):
    batch_id: str
    project_id: str
    biz_id: str
    name: str
    total: int | None
    status: str
    created_at: str
    start_index: int = 0
    source: RowSource | None = None
    # Incremented by each start, so that functions of an older run can no longer write.
    run: int = 0
    request_id: str | None = None
    data_version: int = 0
    stop_reason: str | None = None
    # When the business was asked to prepare for the run.
    asked_at: str | None = None
    start_time: str | None = None
    finish_time: str | None = None
    # The batch in which these items failed.
    redrive_of: str | None = None
    # Whether the project's quota counts it until it is started; batches older than the quota are not counted.
    counted: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTIONS}

    def share(self, runner: int) -> Share:
        """Returns which items are one runner's. Rows of a file are divided by the blocks in which they are read."""
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
            max_errors=self.max_errors,
            skip_failed=self.on_item_failure == SKIP,
            max_failed=self.max_failed,
            max_failed_percent=self.max_failed_percent,
            items_per_call=self.items_per_call,
            item_seconds=self.item_timeout if self.ack == ASYNC else 0,
            most_open=most_open,
            pause_windows=tuple(PauseWindow(*window) for window in self.pause_windows),
        )

    def milestone(self, position: int) -> int:
        """Returns how many times the progress webhook was due up to this position."""
        step = self.progress_every_items or (self.total or 0) * (self.progress_every_percent or 0) / 100
        return int((position - self.start_index) // step) if step else 0

    @property
    def serial(self) -> bool:
        """Whether items are called one at a time, each with the data as they are after the answer before."""
        return self.rate <= 1 and self.items_per_call == 1 and self.runners == 1

    def workers(self, runners: int = 1) -> int:
        """Returns how many calls each of `runners` runners may have under way."""
        if self.serial:
            return 1
        wanted = self.concurrency or min(math.ceil(self.rate), DEFAULT_WORKERS * runners)
        return min(max(1, wanted // runners), MOST_WORKERS)

    @property
    def takes_data(self) -> bool:
        """Whether its data may change now: while it does not run, or between the items of a serial batch."""
        return self.status in (CREATED, WAITING_BIZ, STOPPED) or (self.status == RUNNING and self.serial)


@dataclass(frozen=True, slots=True)
class LogLine:
    log_id: str
    time: str
    message: str
    index: int | None = None
    level: str = "info"


def fair_share(cap: int, batches: int, runners: int) -> int:
    """Returns how many batches one of several channels takes: an even share, at most its capacity."""
    return min(cap, math.ceil(batches / runners)) if runners else 0


def choose_channel(loads: Mapping[str, tuple[int, int]]) -> str:
    """Returns a channel below its fair share, else the least loaded one. `loads`: (load, capacity) of each."""
    batches = 1 + sum(load for load, _ in loads.values())
    below = [name for name, (load, cap) in loads.items() if load < fair_share(cap, batches, len(loads))]
    return min(below or loads, key=lambda name: (loads[name][0], name))
