"""Batches and the businesses that work them: records, states, what may change when."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidegate.batches.pause_windows import PauseWindow
from tidegate.batches.run.sliding_window import WindowState
from tidegate.batches.run.state import Carried, Counts, Rules, Verdict
from tidegate.common.ids import iso
from tidegate.errors import WrongState

CREATED, WAITING_BIZ, RUNNING = "created", "waiting_biz", "running"
STOPPING, STOPPED, FINISHED = "stopping", "stopped", "finished"

# action: each state it is allowed from, and the one it leads to
TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    "start": {CREATED: RUNNING, STOPPED: RUNNING},
    "ask_business": {CREATED: WAITING_BIZ, STOPPED: WAITING_BIZ},
    "biz_start": {WAITING_BIZ: RUNNING},
    "stop": {RUNNING: STOPPING, WAITING_BIZ: STOPPED, STOPPING: STOPPING},
}
ACTIVE = frozenset({RUNNING, STOPPING})
BIZ_WAIT_SECONDS = 30 * 60
ASK_AGAIN_SECONDS = 60
LOWEST_RATE = 0.001
LONGEST_RATE = 10_000
MOST_WORKERS = 256
DEFAULT_WORKERS = 128
ITEM_TIMEOUT = 30
LONGEST_ITEM_TIMEOUT = 900
# A function lives 900 s: it must hear the answer, and write it, within that.
LONGEST_SYNC_ITEM_TIMEOUT = 600
MOST_ITEMS_PER_CALL = 100
STOP, SKIP = "stop", "skip"
SYNC, ASYNC = "sync", "async"


def next_state(action: str, status: str) -> str:
    allowed = TRANSITIONS[action]
    if status not in allowed:
        raise WrongState(f"cannot {action.replace('_', ' ')}: the batch is {status}")
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
    # Items a second, for all its batches together.
    rate: float | None = None

    def accepts(self, auth_code: str | None) -> bool:
        if self.auth_code_sha256 is None:
            return True
        return hmac.compare_digest(hash_auth_code(auth_code or ""), self.auth_code_sha256)


def hash_auth_code(auth_code: str) -> str:
    return hashlib.sha256(auth_code.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RowSource:
    """A file of the library whose rows are the items."""

    file_id: str
    signature: str
    format: str


@dataclass(frozen=True, slots=True)
class Batch:
    batch_id: str
    project_id: str
    biz_id: str
    name: str
    total: int | None
    rate: float
    status: str
    created_at: str
    start_index: int = 0
    concurrency: int | None = None
    max_errors: int | None = None
    retries: int = 5
    retry_delay: float = 3.0
    priority: int = 5
    source: RowSource | None = None
    # Raised by each start; what an older run still does counts no more.
    run: int = 0
    request_id: str | None = None
    data_version: int = 0
    stop_reason: str | None = None
    # When the business was asked to get ready.
    asked_at: str | None = None
    start_time: str | None = None
    finish_time: str | None = None
    on_item_failure: str = STOP
    max_failed: int | None = None
    max_failed_percent: float | None = None
    item_timeout: int = ITEM_TIMEOUT
    ack: str = SYNC
    items_per_call: int = 1
    # (start, end) in seconds of the day, UTC.
    pause_windows: tuple[tuple[int, int], ...] = ()
    progress_url: str | None = None
    progress_every_items: int | None = None
    progress_every_percent: float | None = None
    # The batch whose failed items these are.
    redrive_of: str | None = None

    @property
    def rules(self) -> Rules:
        serial = 1 if self.serial else None
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
            most_open=serial or (self.concurrency if self.ack == ASYNC else None),
            pause_windows=tuple(PauseWindow(*window) for window in self.pause_windows),
        )

    def milestone(self, position: int) -> int:
        """How many times the progress webhook was due by this position."""
        step = self.progress_every_items or (self.total or 0) * (self.progress_every_percent or 0) / 100
        return int((position - self.start_index) // step) if step else 0

    @property
    def serial(self) -> bool:
        """The next item waits for the last one's answer, and sees the data as they are then."""
        return self.rate <= 1 and self.items_per_call == 1

    @property
    def workers(self) -> int:
        if self.serial:
            return 1
        return min(self.concurrency or min(math.ceil(self.rate), DEFAULT_WORKERS), MOST_WORKERS)

    @property
    def takes_data(self) -> bool:
        """Data changes between items only where no two are under way at once."""
        return self.status in (CREATED, WAITING_BIZ, STOPPED) or (self.status == RUNNING and self.serial)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the runner writes each second, and a successor goes on from."""

    window: WindowState
    counts: Counts = field(default_factory=Counts)
    rate_now: float = 0.0
    verdict: Verdict | None = None
    carried: Carried = field(default_factory=Carried)
    # How many parts of the outcomes in S3 count.
    outcome_parts: int = 0
    # Epoch seconds: nothing is to be done until then, and no function runs.
    asleep_until: float | None = None
    # Epoch seconds: when the last item will be called, at the present pace.
    eta: float | None = None
    # The last milestone that the progress webhook was sent for.
    told: int = 0

    @property
    def position(self) -> int:
        return self.window.offset + self.window.acknowledged

    @property
    def errors(self) -> int:
        return self.counts.failed + self.counts.abandoned

    def shown(self, batch: Batch) -> dict[str, Any]:
        total, done = batch.total, self.position - batch.start_index
        percent = None if total is None else round(100 * self.position / total, 2) if total else 100.0
        open_items = self.carried.open_items
        told: dict[str, Any] = {
            "processed": self.position,
            "total": total,
            "percent": percent,
            "errors": self.errors,
            "succeeded": done - self.errors,
            "failed": self.counts.failed,
            "abandoned": self.counts.abandoned,
            "failed_calls": self.counts.failed_calls,
            "retrying": sum(1 for item in open_items if not item.awaiting),
            "awaiting": sum(1 for item in open_items if item.awaiting),
            "rate_now": self.rate_now,
            "offset": self.window.offset,
        }
        if self.eta is not None and batch.status == RUNNING:
            told["eta"] = iso(datetime.fromtimestamp(self.eta, UTC))
        return told


@dataclass(frozen=True, slots=True)
class LogLine:
    log_id: str
    time: str
    message: str
    index: int | None = None
    level: str = "info"


def fair_share(cap: int, batches: int, runners: int) -> int:
    """How many batches one of several runner channels takes: an even share, and never more than its cap."""
    return min(cap, math.ceil(batches / runners)) if runners else 0


def choose_channel(loads: Mapping[str, tuple[int, int]]) -> str:
    """Of runner channels with their (load, cap): one still below its fair share, else the least loaded."""
    batches = 1 + sum(load for load, _ in loads.values())
    below = [name for name, (load, cap) in loads.items() if load < fair_share(cap, batches, len(loads))]
    return min(below or loads, key=lambda name: (loads[name][0], name))
