"""The progress of a batch: of each runner, as stored, and of all runners together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidegate.batches.model import RUNNING, Batch
from tidegate.batches.run.sliding_window import WindowState
from tidegate.batches.run.values import FINISHED, Carried, Counts, Verdict
from tidegate.common.ids import iso


@dataclass(frozen=True, slots=True)
class Progress:
    """What a runner saves each second, and the next slice continues from."""

    window: WindowState
    counts: Counts = field(default_factory=Counts)
    rate_now: float = 0.0
    verdict: Verdict | None = None
    carried: Carried = field(default_factory=Carried)
    # How many parts of outcomes in S3 are valid.
    outcome_parts: int = 0
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
        return self.window.offset + self.window.acknowledged

    @property
    def errors(self) -> int:
        return self.counts.failed + self.counts.abandoned

    def shown(self, batch: Batch) -> dict[str, Any]:
        total, done = batch.total, self.position - batch.start_index
        percent = None if total is None else round(100 * self.position / total, 2) if total else 100.0
        open_items = self.carried.open_items
        fields: dict[str, Any] = {
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
            "offset": self.window.offset if self.first_open is None else self.first_open,
        }
        if self.eta is not None and batch.status == RUNNING:
            fields["eta"] = iso(datetime.fromtimestamp(self.eta, UTC))
        return fields


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """The stored record of one runner."""

    progress: Progress
    fence: int
    lease_until: float

    def is_sleeping(self, now: float) -> bool:
        """Whether its state machine waits for the next call, so that no function would notice a stop until then."""
        wake_at = self.progress.wake_at
        return wake_at is not None and wake_at > now and self.lease_until < now


def first_progress(batch: Batch, runner: int) -> Progress:
    return Progress(WindowState(batch.share(runner).below(batch.start_index)))


def combined(batch: Batch, runners: Sequence[Progress]) -> Progress:
    """Returns the progress of the whole batch, as callers see it."""
    if len(runners) == 1:
        return runners[0]
    counts = [one.counts for one in runners]
    etas = [one.eta for one in runners if one.eta is not None]
    offsets = [batch.share(runner).index(one.window.offset) for runner, one in enumerate(runners)]
    return Progress(
        WindowState(sum(one.position for one in runners)),
        Counts(
            sum(count.failed for count in counts),
            sum(count.abandoned for count in counts),
            sum(count.failed_calls for count in counts),
        ),
        rate_now=round(sum(one.rate_now for one in runners), 1),
        carried=Carried(open_items=tuple(item for one in runners for item in one.carried.open_items)),
        eta=max(etas, default=None),
        last_milestone=max(one.last_milestone for one in runners),
        first_open=min(*offsets, batch.total) if batch.total is not None else min(offsets),
    )


def common_verdict(runners: Sequence[Progress]) -> Verdict | None:
    """Returns how the batch ends, once all runners have ended: a failure first, then a stop, else finished."""
    verdicts = [one.verdict for one in runners if one.verdict is not None]
    if len(verdicts) < len(runners):
        return None
    return min(verdicts, key=lambda verdict: (not verdict.failed, verdict.status == FINISHED))


def ends_others(batch: Batch, runner: int, progress: Progress) -> Verdict | None:
    """Returns the verdict of a runner if it ends the others too, not if it has only finished its own items."""
    verdict = progress.verdict
    if verdict is None or verdict.status != FINISHED:
        return verdict
    own_items_done = batch.total is not None and progress.window.offset >= batch.share(runner).below(batch.total)
    return None if own_items_done else verdict
