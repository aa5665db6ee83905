"""CSV and Excel files from rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.aws.clients import client
from tidegate.exports.delivery import Deliveries
from tidegate.exports.exports import Exports
from tidegate.exports.model import shown
from tidegate.exports.objects import ExportBucket
from tidegate.exports.pull import Puller
from tidegate.exports.source import SignedSource
from tidegate.exports.steps import ExportSteps
from tidegate.exports.store import ExportStore

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.exports.join import Joiner
    from tidegate.exports.ranges import RangeWorker
    from tidegate.exports.render import Renderer
    from tidegate.exports.sample import Sample
    from tidegate.exports.sync import SyncExports
    from tidegate.queue.model import Request


class ExportsPart:
    def __init__(self, app: App) -> None:
        settings, clock, queue = app.settings, app.clock, app.queue
        self._app = app
        self.objects = ExportBucket(app.s3, app.files.bucket)
        self.store = ExportStore(app.table)
        self.shown: Callable[[Request], dict[str, Any]] = lambda request: shown(request, clock(), settings.api_url)
        self.deliveries = Deliveries(
            self._s3_of, settings.files_bucket, settings.delivery_bucket, app.projects.projects.get
        )
        self.exports = Exports(
            queue.queue,
            lambda: queue.control,
            self.store,
            self.objects,
            app.notifications.callbacks.check,
            clock,
            settings.api_url,
            self.deliveries,
        )
        source = SignedSource(
            app.http, app.sign, app.projects.projects.get, clock, credentials=app.projects.credentials
        )
        self._puller = Puller(
            self.objects, source, settings.export_pull_parallel, most_lanes=settings.export_most_workers
        )
        self.steps = ExportSteps(
            queue.queue,
            self.objects,
            self._puller,
            lambda: self._renderer,
            lambda: self._range_worker,
            lambda: self._joiner,
            app.notifications.progress,
            clock,
            self.shown,
            self.deliveries,
        )

    def sample(self, project_id: str, source_url: str) -> Sample:
        """The first rows of a source."""
        from tidegate.exports.sample import sample

        app = self._app
        return sample(
            SignedSource(app.http, app.sign, app.projects.projects.get, app.clock), project_id, source_url, app.clock
        )

    def _s3_of(self, region: str | None) -> Any:
        return client("s3", region=region) if region else self._app.s3

    @cached_property
    def _range_worker(self) -> RangeWorker:
        from tidegate.exports.ranges import RangeWorker

        return RangeWorker(self.objects, self._puller)

    @cached_property
    def _joiner(self) -> Joiner:
        from tidegate.exports.join import Joiner

        return Joiner(self.objects)

    @cached_property
    def _renderer(self) -> Renderer:
        """Imports openpyxl: of the steps only rendering pays for it."""
        from tidegate.exports.render import Renderer

        return Renderer(self.objects)

    @cached_property
    def sync(self) -> SyncExports:
        """Imports openpyxl too."""
        from tidegate.exports.source import SignedSource
        from tidegate.exports.sync import SyncExports
        from tidegate.http.model import Limits

        app = self._app
        # A caller waits, and API Gateway does not wait longer than 30 s.
        source = SignedSource(app.http, app.sign, app.projects.projects.get, app.clock, Limits(total=15.0))
        return SyncExports(self.objects, source, self.exports.check, app.clock)
