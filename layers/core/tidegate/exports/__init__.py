"""Exports: files of rows, pulled from a source.

The app makes one `Exports`. It holds the objects that the steps of an export use. Each step is a function that takes
the `Exports`. Importing any module of this package runs this file. So this file imports other modules only when they
are first used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

    from tidegate.aws.s3 import Bucket
    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.exports.direct import AllowedSources
    from tidegate.exports.exports import Orders
    from tidegate.exports.schedules import ExportSchedule, ScheduledOrder
    from tidegate.exports.source import SourcePace
    from tidegate.exports.steps import Deliveries, LinkMail
    from tidegate.exports.store import ExportBucket, ExportStore
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.notices import Topic
    from tidegate.projects.limits import RunnerTime
    from tidegate.projects.model import Project
    from tidegate.projects.projects import Projects, ProjectStore
    from tidegate.projects.secrets import CredentialStore, Signer
    from tidegate.queue.model import Request
    from tidegate.queue.queue import Queue
    from tidegate.queue.schedules import Schedules
    from tidegate.settings import Settings

# Requests for pages that a function has in flight.
PARALLEL = 4


@dataclass(eq=False, repr=False, kw_only=True)
class Exports:
    """The dependencies of the steps of exports: some are passed in by the app, the others are made at first use."""

    settings: Settings
    clock: Clock
    table: Table
    s3: S3Client
    dynamodb: DynamoDBClient
    http: SafeHttp
    sign: Signer

    # --- parts of other capabilities
    bucket: Bucket
    queue: Queue
    projects: Projects
    project_store: ProjectStore
    credentials: CredentialStore
    root_secret: Callable[[], bytes]
    check_urls: Callable[[str, Mapping[str, str | None]], None]
    topic: Topic
    runner_time: RunnerTime

    # Waits between two requests for a page.
    sleep: Callable[[float], None] = field(default=time.sleep)

    # --- settings as the steps need them

    @cached_property
    def parallel(self) -> int:
        return self.settings.export_pull_parallel

    @cached_property
    def most_lanes(self) -> int:
        """How many workers may render ranges of one export in parallel. With 0, the pages are always staged instead."""
        return self.settings.export_most_workers

    # --- stores

    @cached_property
    def objects(self) -> ExportBucket:
        from tidegate.exports.store import ExportBucket

        return ExportBucket(self.s3, self.bucket)

    @cached_property
    def store(self) -> ExportStore:
        from tidegate.exports.store import ExportStore

        return ExportStore(self.table)

    # --- sources

    @cached_property
    def pace_of(self) -> Callable[[int], SourcePace]:
        """Returns a function that gives the pace of requests for a `source_rate`.

        All exports of this process that have the same rate share one pace.
        """
        from tidegate.aws.host_usage import HostUsage
        from tidegate.exports.source import SourcePace

        return cache(lambda rate: SourcePace(HostUsage(self.table, self.clock), rate))

    @cached_property
    def athena(self) -> Any:
        from tidegate.aws.clients import client

        return client("athena")

    @cached_property
    def _granted(self) -> Callable[[str], Project]:
        """Returns a function that reads a project with a consistent read.

        So a grant that was just removed no longer counts.
        """
        return partial(self.projects.get, consistent=True)

    @cached_property
    def allowed_sources(self) -> AllowedSources:
        from tidegate.exports.direct import AllowedSources

        settings = self.settings
        own = frozenset([settings.files_bucket, settings.table_name])
        places = settings.source_bucket, settings.source_table, settings.source_workgroup
        return AllowedSources(*places, own, self._granted)

    # --- copies and mails

    @cached_property
    def deliveries(self) -> Deliveries:
        from tidegate.aws.clients import client
        from tidegate.exports.steps import Deliveries

        def s3_of(region: str | None) -> Any:
            return client("s3", region=region) if region else self.s3

        return Deliveries(s3_of, self.settings.files_bucket, self.settings.delivery_bucket, self._granted)

    @cached_property
    def mail(self) -> LinkMail:
        from tidegate.aws.clients import lazy_client
        from tidegate.exports.steps import LinkMail

        addresses = self.settings.email_sender, self.settings.email_recipients
        return LinkMail(lazy_client("sesv2"), self.objects, self.store, self.clock, *addresses, self.settings.api_url)

    # --- for callers and for other capabilities

    @cached_property
    def orders(self) -> Orders:
        from tidegate.exports.exports import Orders

        return Orders(self)

    @cached_property
    def schedules(self) -> Schedules[ExportSchedule, ScheduledOrder]:
        from tidegate.exports.schedules import export_schedules

        return export_schedules(self)

    def owned_objects(self, request: Request) -> list[str]:
        """Returns the keys of the objects to delete together with the export's record.

        Pages that were kept for a retry are among them.
        """
        from tidegate.exports.model import keeps_pages
        from tidegate.exports.store import owned_objects, pages_prefix

        pages = self.objects.keys(pages_prefix(request.project_id, request.request_id)) if keeps_pages(request) else ()
        return [*owned_objects(request), *pages]
