"""The request queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.notifications import NotificationsWiring
from tidegate.domain.request_policies import Policy, capacities_from, policies_from

if TYPE_CHECKING:
    from tidegate.adapters.admission import AdmissionPokes
    from tidegate.adapters.dynamo.audit import AuditRepository
    from tidegate.adapters.dynamo.channels import ChannelRepository
    from tidegate.adapters.dynamo.requests import RequestRepository
    from tidegate.adapters.sfn import RequestRunner
    from tidegate.services.archive import Archive
    from tidegate.services.channels import Channels
    from tidegate.services.compensate import DueHandler
    from tidegate.services.queue import Queue
    from tidegate.services.queue_admission import Admission
    from tidegate.services.queue_control import Control
    from tidegate.services.queue_ports import Ending, View
    from tidegate.services.queue_watch import Watch
    from tidegate.services.retention import Objects, Retention
    from tidegate.services.sweep import Sweep


class QueueWiring(NotificationsWiring):
    @cached_property
    def request_policies(self) -> dict[str, Policy]:
        return policies_from(self.settings.request_policies)

    @cached_property
    def channel_capacities(self) -> dict[str, int]:
        return capacities_from(self.settings.channel_capacities)

    def request_views(self) -> dict[str, View]:
        """By type: how a request's end is told, where not as the request itself. Features add theirs to super()'s."""
        return {}

    def request_endings(self) -> dict[str, Ending]:
        """By type: what else is written in the transaction that ends a request. Features add theirs to super()'s."""
        return {}

    def request_objects(self) -> dict[str, Objects]:
        """By type: the keys that go when a request is past its retention. Features add theirs to super()'s."""
        return {}

    @cached_property
    def request_store(self) -> RequestRepository:
        from tidegate.adapters.dynamo.requests import RequestRepository

        return RequestRepository(self.table)

    @cached_property
    def channel_store(self) -> ChannelRepository:
        from tidegate.adapters.dynamo.channels import ChannelRepository

        return ChannelRepository(self.table)

    @cached_property
    def pokes(self) -> AdmissionPokes:
        from tidegate.adapters import sqs
        from tidegate.adapters.admission import AdmissionPokes

        admission = sqs.Queue(self.sqs, self.settings.admission_queue_url)
        return AdmissionPokes(admission, sqs.Queue(self.sqs, self.settings.wakeups_queue_url))

    @cached_property
    def runner(self) -> RequestRunner:
        from tidegate.adapters.sfn import Machines, RequestRunner

        arns = {
            "ingest": self.settings.ingest_machine_arn,
            "export": self.settings.export_machine_arn,
            "batch": self.settings.batch_machine_arn,
        }
        return RequestRunner(Machines(self.sfn), arns, self.request_policies)

    @cached_property
    def queue(self) -> Queue:
        from tidegate.services.queue import Queue

        return Queue(
            self.request_store,
            self.project_store,
            self.pokes,
            self.notifier,
            self.clock,
            self.request_policies,
            self.request_views(),
            self.request_endings(),
        )

    @cached_property
    def control(self) -> Control:
        from tidegate.services.queue_control import Control

        return Control(self.queue, self.request_store, self.pokes, self.runner, self.clock)

    @cached_property
    def channels(self) -> Channels:
        from tidegate.services.channels import Channels

        return Channels(self.channel_store, self.pokes, self.clock, self.channel_capacities)

    def project_usage(self, project_id: str) -> dict[str, Any]:
        """What a project uses of its quotas: `{stored_bytes, queued, running: {channel: n}}`."""
        return self.usage_store.of_project(project_id, [channel.name for channel in self.channels.all()])

    @cached_property
    def watch(self) -> Watch:
        from tidegate.services.queue_watch import Watch

        return Watch(
            self.queue, self.admission, self.request_store, self.channel_store, self.pokes, self.runner, self.clock
        )

    @cached_property
    def audit(self) -> AuditRepository:
        from tidegate.adapters.dynamo.audit import AuditRepository

        return AuditRepository(self.table)

    @cached_property
    def retention(self) -> Retention:
        from tidegate.adapters.dynamo.retention import RetentionRepository
        from tidegate.adapters.s3 import Bucket
        from tidegate.services.retention import Retention

        store, bucket = RetentionRepository(self.table), Bucket(self.s3, self.settings.files_bucket)
        policies, objects = self.request_policies, self.request_objects()
        return Retention(store, bucket, self.clock, policies, objects, self.archive)

    @cached_property
    def archive(self) -> Archive:
        from tidegate.adapters.s3_listing import BucketListing
        from tidegate.services.archive import Archive

        return Archive(BucketListing(self.s3, self.settings.files_bucket), self.clock)

    @cached_property
    def sweep(self) -> Sweep:
        from tidegate.adapters.dynamo.owners import all_owners
        from tidegate.adapters.s3_listing import BucketListing
        from tidegate.services.sweep import Sweep

        return Sweep(BucketListing(self.s3, self.settings.files_bucket), all_owners(self.table), self.clock)

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {
            "request": lambda item: self.watch.request(item["project_id"], item["request_id"]),
            "channel": lambda item: self.watch.channel(item["name"]),
        }

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        return super().record_lookups() | {"req-": self._shown_request}

    def _shown_request(self, project_id: str, request_id: str) -> dict[str, Any] | None:
        request = self.request_store.get(project_id, request_id)
        return self.queue.shown(request) if request else None

    @cached_property
    def admission(self) -> Admission:
        from tidegate.services.queue_admission import Admission

        return Admission(
            self.request_store,
            self.channel_store,
            self.project_store,
            self.runner,
            self.clock,
            self.request_policies,
            self.channel_capacities,
        )
