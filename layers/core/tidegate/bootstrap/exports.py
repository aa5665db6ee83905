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
    from tidegate.exports.exports import Exports
    from tidegate.exports.objects import ExportBucket
    from tidegate.exports.render import Renderer
    from tidegate.exports.source import SignedSource
    from tidegate.exports.steps import ExportWork
    from tidegate.exports.store import ExportRepository
    from tidegate.exports.sync import SyncExports
    from tidegate.queue.model import Request
    from tidegate.queue.ports import Ending, View
    from tidegate.queue.retention import Objects


class ExportsWiring(CallbacksWiring, LibraryWiring, QueueWiring, NotificationsWiring, OutboundWiring):
    # All of them by name, in the App's own order: Python wants one order for all mixins.
    @cached_property
    def _export_objects(self) -> ExportBucket:
        from tidegate.exports.objects import ExportBucket

        return ExportBucket(self.s3, self.bucket)

    @cached_property
    def _export_source(self) -> SignedSource:
        from tidegate.exports.source import SignedSource

        return SignedSource(self.http, self.sign, self.projects.get, self.clock)

    @cached_property
    def _export_store(self) -> ExportRepository:
        from tidegate.exports.store import ExportRepository

        return ExportRepository(self.table)

    @cached_property
    def exports(self) -> Exports:
        from tidegate.exports.exports import Exports

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
        from tidegate.exports.source import SignedSource
        from tidegate.exports.sync import SyncExports
        from tidegate.http.model import Limits

        # A caller waits, and API Gateway does not wait longer than 30 s.
        source = SignedSource(self.http, self.sign, self.projects.get, self.clock, Limits(total=15.0))
        return SyncExports(self._export_objects, source, self.exports.check, self.clock)

    @cached_property
    def export_work(self) -> ExportWork:
        from tidegate.exports.pull import Puller
        from tidegate.exports.steps import ExportWork

        return ExportWork(
            self.queue,
            self._export_objects,
            Puller(self._export_objects, self._export_source, self.settings.export_pull_parallel),
            lambda: self._renderer,
            self.live,
            self.clock,
            self._shown_export,
        )

    @cached_property
    def _renderer(self) -> Renderer:
        """Brings openpyxl: of the steps only rendering pays for it."""
        from tidegate.exports.render import Renderer

        return Renderer(self._export_objects)

    def _shown_export(self, request: Request) -> dict[str, Any]:
        from tidegate.exports.model import shown

        return shown(request, self.clock(), self.settings.api_url)

    def request_views(self) -> dict[str, View]:
        return super().request_views() | {"export": self._shown_export}

    def request_endings(self) -> dict[str, Ending]:
        return super().request_endings() | {"export": lambda ended: self._export_store.ending(ended)}

    def request_objects(self) -> dict[str, Objects]:
        from tidegate.exports.model import owned_objects

        return super().request_objects() | {"export": owned_objects}

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        return super().record_lookups() | {"exp-": self._shown_request}
