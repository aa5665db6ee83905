"""How far a batch is: by runner, as stored, and of all its runners together."""

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
    # Of several runners together: the first item that is not done.
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
            "offset": self.window.offset if self.first_open is None else self.first_open,
        }
        if self.eta is not None and batch.status == RUNNING:
            told["eta"] = iso(datetime.fromtimestamp(self.eta, UTC))
        return told


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """What the table holds of one runner."""

    progress: Progress
    fence: int
    lease_until: float

    def sleeps(self, now: float) -> bool:
        """Its machine waits for the next call to be due, and no function would notice a stop until then."""
        until = self.progress.asleep_until
        return until is not None and until > now and self.lease_until < now


def first_progress(batch: Batch, runner: int) -> Progress:
    return Progress(WindowState(batch.share(runner).below(batch.start_index)))


def combined(batch: Batch, runners: Sequence[Progress]) -> Progress:
    """What callers see of a batch with several runners."""
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
        told=max(one.told for one in runners),
        first_open=min(*offsets, batch.total) if batch.total is not None else min(offsets),
    )


def common_verdict(runners: Sequence[Progress]) -> Verdict | None:
    """How a batch ends whose runners all came to an end: by the first fault, else a stop, else it is finished."""
    verdicts = [one.verdict for one in runners]
    if any(verdict is None for verdict in verdicts):
        return None
    told = [verdict for verdict in verdicts if verdict is not None]
    return min(told, key=lambda verdict: (not verdict.failed, verdict.status == FINISHED))


def ends_others(batch: Batch, runner: int, progress: Progress) -> Verdict | None:
    """The verdict of one runner that the others follow; not that it has come to the end of its own items."""
    verdict = progress.verdict
    if verdict is None or verdict.status != FINISHED:
        return verdict
    whole = batch.total is not None and progress.window.offset >= batch.share(runner).below(batch.total)
    return None if whole else verdict
