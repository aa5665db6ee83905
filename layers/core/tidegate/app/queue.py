"""Wires the request queue: admission, control, recovery and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.aws.clients import SqsQueue
from tidegate.aws.s3 import BucketListing
from tidegate.queue.admission import Admission
from tidegate.queue.channels import ChannelStore
from tidegate.queue.control import Channels, Control, RequestRecovery
from tidegate.queue.log import RequestLog, StatsStore
from tidegate.queue.model import capacities_from, policies_from
from tidegate.queue.queue import AdmissionQueue, RequestQueue, RequestRunner
from tidegate.queue.retention import Archive, Retention, RetentionStore, StoppedRuns, StoreIdentity, Sweep
from tidegate.queue.store import RequestStore, UniqueRequests

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.queue.schedules import ScheduleParts


class QueuePart:
    def __init__(self, app: App) -> None:
        settings, clock, table = app.settings, app.clock, app.table
        self.policies = policies_from(settings.request_policies)
        capacities = capacities_from(settings.channel_capacities)
        self._app = app
        self.store = RequestStore(table)
        self.stats = StatsStore(table)
        self.log = RequestLog(table, clock)
        self.unique = UniqueRequests(table, self.store, clock)
        self.channel_store = ChannelStore(table)
        self.admission_queue = AdmissionQueue(
            self.channel_store,
            SqsQueue(app.sqs, settings.admission_queue_url),
            SqsQueue(app.sqs, settings.wakeups_queue_url),
            clock,
        )
        machines = {
            "ingest": settings.ingest_machine_arn,
            "export": settings.export_machine_arn,
            "batch": settings.batch_machine_arn,
        }
        self.runner = RequestRunner(app.machines, app.freeze, machines, self.policies)
        self.queue = RequestQueue(
            self.store,
            app.projects.store,
            app.projects.usage,
            self.admission_queue,
            app.notifications.notifier,
            app.freeze,
            clock,
            self.policies,
            app.request_views,
            app.request_endings,
        )
        self.control = Control(self.queue, self.store, self.admission_queue, self.runner, clock, app.request_restarts)
        self.channels = Channels(self.channel_store, self.admission_queue, clock, capacities)
        self.admission = Admission(
            self.store,
            self.channel_store,
            app.projects.store,
            app.projects.usage,
            self.runner,
            self.admission_queue,
            app.freeze,
            clock,
            self.policies,
            capacities,
            settings.extra_slot_wait_seconds,
        )
        self.recovery = RequestRecovery(
            self.queue, self.admission, self.store, self.channel_store, self.admission_queue, self.runner, clock
        )

        self._usage, self._clock = app.projects.usage, clock
        listing = BucketListing(app.s3, settings.files_bucket)
        self.archive = Archive(listing, clock)
        self.retention = Retention(
            RetentionStore(table), app.files.bucket, clock, self.policies, app.request_objects, self.archive
        )
        self.stopped_sweeps = StoppedRuns(table, clock)
        self.identity = StoreIdentity(
            table, listing, lambda: [owner.prefix for owner in app.object_owners], self.stopped_sweeps, clock
        )
        self.sweep = Sweep(listing, lambda: app.object_owners, table, self.identity, self.stopped_sweeps, clock)

    def project_usage(self, project_id: str) -> dict[str, Any]:
        """How much of its quotas a project uses: its counts by name, and `running: {channel: n}`."""
        return self._usage.of_project(project_id, [channel.name for channel in self.channels.all()], self._clock())

    @property
    def schedule_parts(self) -> ScheduleParts:
        """Of schedules that start requests."""
        from tidegate.queue.schedules import ScheduleParts

        return ScheduleParts(
            self._app.table, self.queue, self.shown_many, self._app.projects.store.quotas, self._app.clock
        )

    def shown(self, project_id: str, request_id: str) -> dict[str, Any] | None:
        """The request as notices show it; None if there is none."""
        request = self.store.get(project_id, request_id)
        return self.queue.shown(request) if request else None

    def shown_many(self, project_id: str, request_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The requests that exist, as notices show them, by id."""
        found = self.store.get_many((project_id, request_id) for request_id in request_ids)
        return {request_id: self.queue.shown(request) for (_, request_id), request in found.items()}
