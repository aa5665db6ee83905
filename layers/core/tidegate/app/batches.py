"""Wires batches: a business processes many items at a limited rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.batches.batches import Batches, BatchLogs, DryRun, ItemResults, Preparations, Registry
from tidegate.batches.control import BatchControl, BatchEnds
from tidegate.batches.items import Outcomes
from tidegate.batches.model import MOST_RUNNERS, Batch
from tidegate.batches.rows import RowBucket, RowFiles
from tidegate.batches.run_state import BatchRunStore, RateShares
from tidegate.batches.schedules import BatchSchedules
from tidegate.batches.slice import Milestones, SliceRunner, SliceTiming
from tidegate.batches.steps import BatchSteps
from tidegate.batches.store import BatchStore, BusinessStore
from tidegate.batches.workers import BusinessCalls
from tidegate.queue.fairness import ceiling
from tidegate.queue.model import capacities_from

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
        self.rows = RowFiles(objects, app.files.store.object_of)
        quotas = app.projects.store.quotas
        self.batches = Batches(
            self.store,
            self.businesses,
            calls,
            app.files.library,
            self.rows,
            outcomes,
            results,
            self._place,
            quotas,
            self._most_runners,
            clock,
        )
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
        budget = app.projects.runner_time.budget
        runner = SliceRunner(self.store, runs, prepare, outcomes, results, shares, milestones, clock, timing, budget)
        progress = app.notifications.progress
        self.machine = BatchSteps(
            self.store,
            runner,
            prepare,
            queue.queue,
            runs,
            progress,
            clock,
            settings.batch_rounds,
            app.projects.runner_time,
        )
        parts = queue.schedule_parts._replace(works=self.batches.get_many)
        self.schedules = BatchSchedules(self.batches, self.control, parts)
        self.ends = BatchEnds(self.store, runs, clock)

    def _place(self, batch: Batch, index: int) -> int | None:
        return self._prepare.place(batch, index)

    def _runner_loads(self) -> Mapping[str, tuple[int, int]]:
        """(running and queued, capacity) by channel; empty if there is only one channel for batches."""
        names = [name for name in self._app.settings.batch_channels.split(",") if name]
        if len(names) < 2:
            return {}
        channels = self._app.queue.channels.stats()
        stats = {found.channel: (found.running + found.queued, found.capacity) for found in channels}
        return {name: stats.get(name, (0, 1)) for name in names}

    def _most_runners(self, project_id: str) -> int:
        """The most slots of a channel for batches that the project may hold: each runner takes one."""
        quotas, settings = self._app.projects.store.quotas(project_id), self._app.settings
        names = [name for name in settings.batch_channels.split(",") if name]
        found = {channel.name: channel.capacity for channel in self._app.queue.channel_store.all()}
        known = capacities_from(settings.channel_capacities) | found
        slots = (ceiling(known.get(name, 1), (quotas.share or {}).get(name)) for name in names)
        return max(1, min(max(slots, default=1), quotas.running or MOST_RUNNERS))

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
        return self._app.exports.orders.submit(project_id, spec, options, who)
