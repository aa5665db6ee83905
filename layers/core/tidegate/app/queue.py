"""Wires the request queue: admission, control, recovery and retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.aws.s3_listing import BucketListing
from tidegate.aws.sfn import Machines
from tidegate.aws.sqs import SqsQueue
from tidegate.queue.admission.admit import Admission
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.bulk import BulkControl
from tidegate.queue.channels.control import Channels
from tidegate.queue.channels.store import ChannelStore
from tidegate.queue.control import Control
from tidegate.queue.policies import capacities_from, policies_from
from tidegate.queue.queue import RequestQueue
from tidegate.queue.recovery import RequestRecovery
from tidegate.queue.request_log import RequestLog
from tidegate.queue.retention.archive import Archive
from tidegate.queue.retention.retention import Retention
from tidegate.queue.retention.store import RetentionStore
from tidegate.queue.retention.sweep import Sweep
from tidegate.queue.runner import RequestRunner
from tidegate.queue.stats_store import StatsStore
from tidegate.queue.store import RequestStore
from tidegate.queue.unique import UniqueRequests

if TYPE_CHECKING:
    from tidegate.app import App


class QueuePart:
    def __init__(self, app: App) -> None:
        settings, clock, table = app.settings, app.clock, app.table
        self.policies = policies_from(settings.request_policies)
        capacities = capacities_from(settings.channel_capacities)
        self.store = RequestStore(table)
        self.stats = StatsStore(table)
        self.log = RequestLog(table, clock)
        self.unique = UniqueRequests(table, self.store, clock)
        self.channel_store = ChannelStore(table)
        self.admission_queue = AdmissionQueue(
            SqsQueue(app.sqs, settings.admission_queue_url), SqsQueue(app.sqs, settings.wakeups_queue_url)
        )
        machines = {
            "ingest": settings.ingest_machine_arn,
            "export": settings.export_machine_arn,
            "batch": settings.batch_machine_arn,
        }
        self.runner = RequestRunner(Machines(app.sfn), machines, self.policies)
        self.queue = RequestQueue(
            self.store,
            app.projects.store,
            self.admission_queue,
            app.notifications.notifier,
            clock,
            self.policies,
            app.request_views,
            app.request_endings,
        )
        self.control = Control(self.queue, self.store, self.admission_queue, self.runner, clock, app.request_restarts)
        self.bulk = BulkControl(self.store, self.control)
        self.channels = Channels(self.channel_store, self.admission_queue, clock, capacities)
        self.admission = Admission(
            self.store,
            self.channel_store,
            app.projects.store,
            self.runner,
            self.admission_queue,
            clock,
            self.policies,
            capacities,
            settings.extra_slot_wait_seconds,
        )
        self.recovery = RequestRecovery(
            self.queue, self.admission, self.store, self.channel_store, self.admission_queue, self.runner, clock
        )

        self._usage = app.projects.usage
        listing = BucketListing(app.s3, settings.files_bucket)
        self.archive = Archive(listing, clock)
        self.retention = Retention(
            RetentionStore(table), app.files.bucket, clock, self.policies, app.request_objects, self.archive
        )
        self.sweep = Sweep(listing, lambda: app.object_owners, table, clock)

    def project_usage(self, project_id: str) -> dict[str, Any]:
        """How much of its quotas a project uses: its counts by name, and `running: {channel: n}`."""
        return self._usage.of_project(project_id, [channel.name for channel in self.channels.all()])

    def shown(self, project_id: str, request_id: str) -> dict[str, Any] | None:
        """The request as notices show it; None if there is none."""
        request = self.store.get(project_id, request_id)
        return self.queue.shown(request) if request else None
