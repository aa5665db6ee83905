"""Wires exports: CSV, Excel and other files from rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tidegate.aws.clients import client, lazy_client
from tidegate.aws.host_usage import HostUsage
from tidegate.exports.direct import AllowedSources, DirectSources
from tidegate.exports.exports import Exports
from tidegate.exports.model import keeps_pages, owned_objects, pages_prefix, shown
from tidegate.exports.pull import Puller
from tidegate.exports.source import SignedSource, SourcePace, Sources
from tidegate.exports.steps import Deliveries, ExportSteps, LinkMail
from tidegate.exports.store import ExportBucket, ExportStore

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.exports.exports import Sample, SyncExports
    from tidegate.exports.ranges import Joiner, RangeWorker
    from tidegate.exports.render import Renderer
    from tidegate.exports.schedules import ExportSchedules
    from tidegate.queue.model import Request


class ExportsPart:
    def __init__(self, app: App) -> None:
        settings, clock, queue = app.settings, app.clock, app.queue
        self._app = app
        self.objects = ExportBucket(app.s3, app.files.bucket)
        self.store = ExportStore(app.table)
        self.shown: Callable[[Request], dict[str, Any]] = lambda request: shown(request, clock(), settings.api_url)
        # A consistent read, so that a grant that was just removed no longer counts.
        granted = partial(app.projects.projects.get, consistent=True)
        self.deliveries = Deliveries(self._s3_of, settings.files_bucket, settings.delivery_bucket, granted)
        self.allowed_sources = AllowedSources(
            settings.source_bucket,
            settings.source_table,
            settings.source_workgroup,
            frozenset([settings.files_bucket, settings.table_name]),
            granted,
        )
        self.mail = LinkMail(
            lazy_client("sesv2"),
            self.objects,
            self.store,
            clock,
            settings.email_sender,
            settings.email_recipients,
            settings.api_url,
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
            self.mail,
            self.allowed_sources,
        )
        signed = SignedSource(
            app.http, app.sign, app.projects.projects.get, clock, credentials=app.projects.credentials
        )
        usage = HostUsage(app.table, clock)
        self._pace_of: Callable[[int], SourcePace] = lambda rate: SourcePace(usage, rate)
        source = Sources(signed, self._direct, self._pace_of)
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
            self.mail,
            app.projects.runner_time,
        )

    def owned_objects(self, request: Request) -> list[str]:
        """The objects that are deleted with the record: its own, and the pages that were kept for a retry."""
        pages = self.objects.keys(pages_prefix(request.project_id, request.request_id)) if keeps_pages(request) else ()
        return [*owned_objects(request), *pages]

    def sample(self, project_id: str, source_url: str) -> Sample:
        """The first rows of a source."""
        from tidegate.exports.exports import sample

        app = self._app
        source = Sources(SignedSource(app.http, app.sign, app.projects.projects.get, app.clock))
        return sample(source, project_id, source_url, app.clock)

    @property
    def _direct(self) -> DirectSources:
        """The reader of direct sources. Each kind is imported, and its client created, when it is first read."""

        def s3() -> Any:
            from tidegate.exports.direct import S3Objects

            return S3Objects(self._app.s3)

        def dynamodb() -> Any:
            from tidegate.exports.direct import DynamoQueries

            return DynamoQueries(self._app.dynamodb)

        def athena() -> Any:
            from tidegate.exports.direct import AthenaQueries

            return AthenaQueries(client("athena"))

        return DirectSources(self.allowed_sources, {"s3": s3, "dynamodb": dynamodb, "athena": athena})

    @cached_property
    def schedules(self) -> ExportSchedules:
        from tidegate.exports.schedules import ExportSchedules

        app = self._app
        return ExportSchedules(app.table, self.exports, app.queue.queue, app.projects.store.quotas, app.clock)

    def _s3_of(self, region: str | None) -> Any:
        return client("s3", region=region) if region else self._app.s3

    @cached_property
    def _range_worker(self) -> RangeWorker:
        from tidegate.exports.ranges import RangeWorker

        return RangeWorker(self.objects, self._puller)

    @cached_property
    def _joiner(self) -> Joiner:
        from tidegate.exports.ranges import Joiner

        return Joiner(self.objects)

    @cached_property
    def _renderer(self) -> Renderer:
        """Imports openpyxl, which only the rendering step needs."""
        from tidegate.exports.render import Renderer

        return Renderer(self.objects)

    @cached_property
    def sync(self) -> SyncExports:
        """Imports openpyxl, like `_renderer`."""
        from tidegate.exports.exports import SyncExports
        from tidegate.http.model import Limits

        app = self._app
        # The caller waits for the answer, and API Gateway allows 30 s.
        source = SignedSource(app.http, app.sign, app.projects.projects.get, app.clock, Limits(total=15.0))
        return SyncExports(self.objects, Sources(source, pace_of=self._pace_of), self.exports.check, app.clock)
