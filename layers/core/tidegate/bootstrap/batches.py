"""Batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.exports import ExportsWiring

if TYPE_CHECKING:
    from tidegate.batches.batches import Batches
    from tidegate.batches.business_calls import BusinessCalls
    from tidegate.batches.control import BatchControl
    from tidegate.batches.ends import BatchEnds
    from tidegate.batches.registry import Registry
    from tidegate.batches.run_store import BatchRunRepository
    from tidegate.batches.steps import BatchMachine
    from tidegate.batches.store import BatchRepository
    from tidegate.compensation.poll import DueHandler
    from tidegate.queue.model import Request
    from tidegate.queue.ports import Ending, View


class BatchesWiring(ExportsWiring):
    @cached_property
    def batch_store(self) -> BatchRepository:
        from tidegate.batches.store import BatchRepository

        return BatchRepository(self.table)

    @cached_property
    def _batch_runs(self) -> BatchRunRepository:
        from tidegate.batches.run_store import BatchRunRepository

        return BatchRunRepository(self.table)

    @cached_property
    def _business_calls(self) -> BusinessCalls:
        from tidegate.batches.business_calls import BusinessCalls

        return BusinessCalls(self.http, self.sign, self.projects.get, self.clock)

    @cached_property
    def businesses(self) -> Registry:
        from tidegate.batches.registry import Registry
        from tidegate.batches.store import BusinessRepository

        return Registry(BusinessRepository(self.table), self.callbacks.check, self.clock)

    @cached_property
    def batches(self) -> Batches:
        from tidegate.batches.batches import Batches

        return Batches(self.batch_store, self.businesses, self._business_calls, self.files, self.queue, self.clock)

    @cached_property
    def batch_control(self) -> BatchControl:
        from tidegate.batches.control import BatchControl

        return BatchControl(
            self.batches,
            self.batch_store,
            self.businesses,
            self._business_calls,
            self.queue,
            lambda: self.control,
            self._runner_loads,
            self.notifier,
            self.clock,
        )

    def _runner_loads(self) -> Mapping[str, tuple[int, int]]:
        """Asked for only where there are several runner channels to choose from."""
        names = [name for name in self.settings.batch_channels.split(",") if name]
        if len(names) < 2:
            return {}
        stats = {found.channel: (found.running + found.queued, found.capacity) for found in self.channels.stats()}
        return {name: stats.get(name, (0, 1)) for name in names}

    @cached_property
    def batch_machine(self) -> BatchMachine:
        from tidegate.batches.row_objects import RowBucket
        from tidegate.batches.rows import RowFiles
        from tidegate.batches.slice import Pace, SliceRunner
        from tidegate.batches.steps import BatchMachine, Preparations

        prepare = Preparations(
            self.batch_store,
            self._batch_runs,
            RowFiles(RowBucket(self.s3, self.bucket)),
            self.http,
            self.sign,
            self.clock,
            self.businesses.get,
            self.projects.get,
        )
        pace = Pace(self.settings.batch_slice_seconds, self.settings.batch_lease_seconds)
        runner = SliceRunner(self.batch_store, self._batch_runs, prepare, self.clock, pace)
        return BatchMachine(
            self.batch_store, runner, self.queue, self._batch_runs, self.live, self.clock, self.settings.batch_rounds
        )

    @cached_property
    def _batch_ends(self) -> BatchEnds:
        from tidegate.batches.ends import BatchEnds

        return BatchEnds(self.batch_store, self._batch_runs, self.clock)

    def request_views(self) -> dict[str, View]:
        return super().request_views() | {"batch": self._ended_batch}

    def _ended_batch(self, request: Request) -> dict[str, Any]:
        return self._batch_ends.shown(request)

    def request_endings(self) -> dict[str, Ending]:
        return super().request_endings() | {"batch": self._batch_ending}

    def _batch_ending(self, request: Request) -> Sequence[Any]:
        return self._batch_ends.writes(request)

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {
            "batch_ask": lambda item: self.batch_control.ask_again(item["project_id"], item["batch_id"]),
            "batch_wait": lambda item: self.batch_control.give_up_waiting(item["project_id"], item["batch_id"]),
        }

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        return super().record_lookups() | {"bat-": self._shown_batch}

    def _shown_batch(self, project_id: str, batch_id: str) -> dict[str, Any] | None:
        batch = self.batch_store.get(project_id, batch_id)
        return self.batches.shown(batch) if batch else None

    def export_batch_logs(self, project_id: str, batch_id: str, who: str) -> str:
        """The lines as an export like any other: queued, rendered, fetched by its task_id."""
        from tidegate.exports.exports import Order
        from tidegate.exports.model import CSV, ExportSpec, TableSpec

        columns = {"time": "time", "index": "index", "level": "level", "message": "message"}
        rows = self.batches.log_rows(project_id, batch_id)
        spec = ExportSpec(type=CSV, tables=(TableSpec(data=rows, template=columns),))
        order = Order(name="Batch logs", file_name=f"{batch_id}-logs")
        return self.exports.submit(project_id, spec, order, who)
