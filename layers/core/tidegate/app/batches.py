"""Wires batches: a business processes many items at a limited rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.batches.batches import Batches
from tidegate.batches.control import BatchControl
from tidegate.batches.dry_run import DryRun
from tidegate.batches.ends import BatchEnds
from tidegate.batches.logs import BatchLogs
from tidegate.batches.milestones import Milestones
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.preparations import Preparations
from tidegate.batches.recurring.schedules import BatchSchedules
from tidegate.batches.recurring.store import BatchScheduleStore
from tidegate.batches.registry import Registry
from tidegate.batches.results import ItemResults
from tidegate.batches.rows.files import RowFiles
from tidegate.batches.rows.objects import RowBucket
from tidegate.batches.run.business_calls import BusinessCalls
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.slice import SliceRunner, SliceTiming
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.steps import BatchSteps
from tidegate.batches.store import BatchStore, BusinessStore

if TYPE_CHECKING:
    from tidegate.app import App


class BatchesPart:
    def __init__(self, app: App) -> None:
        settings, clock, queue, project = app.settings, app.clock, app.queue, app.projects.projects.get
        self._app = app
        self.store = BatchStore(app.table)
        self.runs = runs = BatchRunStore(app.table)
        calls = BusinessCalls(app.http, app.sign, project, clock)
        self.businesses = Registry(
            BusinessStore(app.table), app.notifications.callbacks.check, app.projects.store.quotas, clock
        )
        objects = RowBucket(app.s3, app.files.bucket)
        self.outcomes = outcomes = Outcomes(objects)
        results = ItemResults(app.table)
        quotas = app.projects.store.quotas
        self.batches = Batches(self.store, self.businesses, calls, app.files.library, outcomes, results, quotas, clock)
        self.logs = BatchLogs(self.batches, self.store, clock)
        self.control = BatchControl(
            self.batches,
            self.store,
            self.businesses,
            calls,
            queue.queue,
            lambda: queue.control,
            self._runner_loads,
            app.notifications.notifier,
            clock,
        )
        self.rows = RowFiles(objects, app.files.store.object_of)
        self._prepare = prepare = Preparations(
            self.store,
            self.rows,
            app.http,
            app.sign,
            clock,
            self.businesses.get,
            project,
        )
        timing = SliceTiming(settings.batch_slice_seconds, settings.batch_lease_seconds)
        milestones = Milestones(app.table, app.notifications.notifier, clock)
        shares = RateShares(app.table)
        runner = SliceRunner(self.store, runs, prepare, outcomes, results, shares, milestones, clock, timing)
        progress = app.notifications.progress
        self.machine = BatchSteps(
            self.store, runner, prepare, queue.queue, runs, progress, clock, settings.batch_rounds
        )
        self.schedules = BatchSchedules(BatchScheduleStore(app.table), self.batches, self.control, quotas, clock)
        self.ends = BatchEnds(self.store, runs, clock)

    def _runner_loads(self) -> Mapping[str, tuple[int, int]]:
        """(running and queued, capacity) by channel; empty if there is only one channel for batches."""
        names = [name for name in self._app.settings.batch_channels.split(",") if name]
        if len(names) < 2:
            return {}
        channels = self._app.queue.channels.stats()
        stats = {found.channel: (found.running + found.queued, found.capacity) for found in channels}
        return {name: stats.get(name, (0, 1)) for name in names}

    def dry_run(self, project_id: str, batch_id: str, items: int) -> list[dict[str, Any]]:
        """Calls the business with the first items, and returns its answers. Stores nothing."""
        return DryRun(self._prepare).run(self.batches.get(project_id, batch_id), items)

    def shown(self, project_id: str, batch_id: str) -> dict[str, Any] | None:
        """The batch as its route shows it; None if there is none."""
        batch = self.store.get(project_id, batch_id)
        return self.batches.shown(batch) if batch else None

    def export_logs(self, project_id: str, batch_id: str, who: str) -> str:
        """Submits an export of the log lines. Returns its task_id."""
        from tidegate.exports.model import CSV, ExportOptions, ExportSpec, TableSpec

        columns = {"time": "time", "index": "index", "level": "level", "message": "message"}
        rows = self.logs.rows(project_id, batch_id)
        spec = ExportSpec(type=CSV, tables=(TableSpec(data=rows, template=columns),))
        options = ExportOptions(name="Batch logs", file_name=f"{batch_id}-logs")
        return self._app.exports.exports.submit(project_id, spec, options, who)
