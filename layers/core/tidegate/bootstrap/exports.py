"""Exports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.callbacks import CallbacksWiring
from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.notifications import NotificationsWiring
from tidegate.bootstrap.outbound import OutboundWiring
from tidegate.bootstrap.queue import QueueWiring

if TYPE_CHECKING:
    from tidegate.adapters.dynamo.exports import ExportRepository
    from tidegate.adapters.export_objects import ExportBucket
    from tidegate.domain.requests import Request
    from tidegate.services.export_join import Joiner
    from tidegate.services.export_pull import Puller
    from tidegate.services.export_ranges import RangeWorker
    from tidegate.services.export_render import Renderer
    from tidegate.services.export_source import SignedSource
    from tidegate.services.export_sync import SyncExports
    from tidegate.services.export_work import ExportWork
    from tidegate.services.exports import Exports
    from tidegate.services.queue_ports import Ending, View
    from tidegate.services.retention import Objects


class ExportsWiring(CallbacksWiring, LibraryWiring, QueueWiring, NotificationsWiring, OutboundWiring):
    # All of them by name, in the App's own order: Python wants one order for all mixins.
    @cached_property
    def _export_objects(self) -> ExportBucket:
        from tidegate.adapters.export_objects import ExportBucket

        return ExportBucket(self.s3, self.bucket)

    @cached_property
    def _export_source(self) -> SignedSource:
        from tidegate.services.export_source import SignedSource

        return SignedSource(self.http, self.sign, self.projects.get, self.clock)

    @cached_property
    def _export_store(self) -> ExportRepository:
        from tidegate.adapters.dynamo.exports import ExportRepository

        return ExportRepository(self.table)

    @cached_property
    def exports(self) -> Exports:
        from tidegate.services.exports import Exports

        return Exports(
            self.queue,
            lambda: self.control,
            self._export_store,
            self._export_objects,
            self.callbacks.check,
            self.clock,
            self.settings.api_url,
        )

    @cached_property
    def sync_exports(self) -> SyncExports:
        from tidegate.domain.fetching import Limits
        from tidegate.services.export_source import SignedSource
        from tidegate.services.export_sync import SyncExports

        # A caller waits, and API Gateway does not wait longer than 30 s.
        source = SignedSource(self.http, self.sign, self.projects.get, self.clock, Limits(total=15.0))
        return SyncExports(self._export_objects, source, self.exports.check, self.clock)

    @cached_property
    def export_work(self) -> ExportWork:
        from tidegate.services.export_work import ExportWork

        return ExportWork(
            self.queue,
            self._export_objects,
            self._puller,
            lambda: self._renderer,
            lambda: self._range_worker,
            lambda: self._joiner,
            self.live,
            self.clock,
            self._shown_export,
        )

    @cached_property
    def _puller(self) -> Puller:
        from tidegate.services.export_pull import Puller

        settings = self.settings
        return Puller(
            self._export_objects,
            self._export_source,
            settings.export_pull_parallel,
            most_lanes=settings.export_most_workers,
        )

    @cached_property
    def _range_worker(self) -> RangeWorker:
        from tidegate.services.export_ranges import RangeWorker

        return RangeWorker(self._export_objects, self._puller)

    @cached_property
    def _joiner(self) -> Joiner:
        from tidegate.services.export_join import Joiner

        return Joiner(self._export_objects)

    @cached_property
    def _renderer(self) -> Renderer:
        """Brings openpyxl: of the steps only rendering pays for it."""
        from tidegate.services.export_render import Renderer

        return Renderer(self._export_objects)

    def _shown_export(self, request: Request) -> dict[str, Any]:
        from tidegate.domain.exports import shown

        return shown(request, self.clock(), self.settings.api_url)

    def request_views(self) -> dict[str, View]:
        return super().request_views() | {"export": self._shown_export}

    def request_endings(self) -> dict[str, Ending]:
        return super().request_endings() | {"export": lambda ended: self._export_store.ending(ended)}

    def request_objects(self) -> dict[str, Objects]:
        from tidegate.domain.exports import owned_objects

        return super().request_objects() | {"export": owned_objects}

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        return super().record_lookups() | {"exp-": self._shown_request}
