"""The composition root: every capability wired once, when a function first asks for it.

Read it top to bottom: settings and clients, one class for each capability in the order of the import contract, and
last the App, which makes them and holds the registries that connect them.

Imports stand inside the classes because they pay there: a capability costs a cold start 5 to 50 ms (exports with
openpyxl 200 ms), and a function needs two or three of them. `tests/bench/cold_start.py` measures it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.aws.clients import lazy_client
from tidegate.common.ids import Clock
from tidegate.errors import RecordNotFound
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.aws.table import Table
    from tidegate.compensation.poll import DueHandler
    from tidegate.distribution.control import JobControl
    from tidegate.distribution.fleet.enrolment import Enrolments
    from tidegate.distribution.fleet.wakeups import AgentWaker
    from tidegate.distribution.ports import Engine
    from tidegate.exports.join import Joiner
    from tidegate.exports.ranges import RangeWorker
    from tidegate.exports.render import Renderer
    from tidegate.exports.sync import SyncExports
    from tidegate.files.model import File
    from tidegate.files.upload import Uploads
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.websocket import BatchLookup
    from tidegate.projects.api_keys import ApiKeys
    from tidegate.projects.model import Project
    from tidegate.queue.model import Request
    from tidegate.queue.queue import Ending, View
    from tidegate.queue.retention.retention import Objects

    Lookup = Callable[[str, str], dict[str, Any] | None]


class ProjectsPart:
    """Tenants, their keys, quotas and secrets, and who did what."""

    def __init__(self, app: App) -> None:
        from tidegate.projects.audit_store import AuditStore
        from tidegate.projects.authentication import Authentication
        from tidegate.projects.callback_secrets import CallbackSecrets
        from tidegate.projects.credential_store import CredentialStore
        from tidegate.projects.key_store import ApiKeyStore
        from tidegate.projects.known_keys import KnownKeys
        from tidegate.projects.projects import Projects
        from tidegate.projects.rate_limit import WINDOW_SECONDS, RateLimiter
        from tidegate.projects.rate_quotas import RateQuotas
        from tidegate.projects.root_secret import RootSecret
        from tidegate.projects.store import ProjectStore
        from tidegate.projects.usage_store import UsageStore

        settings, clock = app.settings, app.clock
        self._app = app
        self.store = ProjectStore(app.table)
        self.projects = Projects(self.store, clock)
        self.audit = AuditStore(app.table)

        self.key_store = ApiKeyStore(app.table)
        self.authentication = Authentication(self.key_store, clock, settings.admin_key_sha256)
        self.known_keys = KnownKeys(self.authentication.describe, clock, settings.key_cache_seconds)
        root = RootSecret(app.ssm, settings.callback_root_name)
        self.callback_secrets = CallbackSecrets(self.store, root, clock)
        self.credentials = CredentialStore(app.secretsmanager, settings.secrets_prefix)

        self.usage = UsageStore(app.table)

        def register(project_id: str, window: int, name: str) -> int:
            return self.usage.register_server(project_id, window, name, (window + 60) * WINDOW_SECONDS)

        self.rate_limiter = RateLimiter(register)
        self.rate_quotas = RateQuotas(self.store, clock)

    @cached_property
    def api_keys(self) -> ApiKeys:
        """A key that ends closes its WebSockets."""
        from tidegate.projects.api_keys import ApiKeys

        app, told = self._app, self._app.notifications
        return ApiKeys(
            self.key_store,
            told.connections,
            lambda: told.outgoing,
            self.projects.get,
            app.clock,
            app.settings.admin_key_sha256,
        )


class FilesPart:
    """The library of files."""

    def __init__(self, app: App) -> None:
        from tidegate.aws.s3_uploads import UploadBucket
        from tidegate.files.contents import ContentStore
        from tidegate.files.library import Library
        from tidegate.files.store import FileStore

        self._app = app
        self.bucket = UploadBucket(app.s3, app.settings.files_bucket)
        self.store = FileStore(app.table)
        self.contents = ContentStore(app.table)
        self.library = Library(self.store, self.bucket, app.clock)

    @cached_property
    def uploads(self) -> Uploads:
        """A large upload is verified by a request of the queue."""
        from tidegate.files.upload import Uploads

        def enqueue(file: File, writes: Sequence[Any], who: str) -> None:
            self._app.queue.queue.submit(
                file.project_id,
                "verify",
                payload={"file_id": file.file_id},
                request_id=file.request_id,
                callback=file.callback,
                extra_writes=writes,
                who=who,
            )

        return Uploads(self.store, self.bucket, self._app.clock, enqueue)


class NotificationsPart:
    """What the outside is told: the topic, callbacks, the WebSocket."""

    def __init__(self, app: App) -> None:
        from tidegate.aws.clients import credentials, region
        from tidegate.aws.sqs import SqsQueue
        from tidegate.notifications.callback_queue import CallbackQueue
        from tidegate.notifications.callbacks import Callbacks
        from tidegate.notifications.circuit_breaker import CircuitBreaker
        from tidegate.notifications.delivery import Deliverer
        from tidegate.notifications.delivery_store import CircuitStore, DeliveryStore
        from tidegate.notifications.notify import Notifier
        from tidegate.notifications.outbox import Outbox
        from tidegate.notifications.progress import ProgressFeed
        from tidegate.notifications.topic import Topic
        from tidegate.notifications.websocket import RecordLookup, WebSocketClients
        from tidegate.notifications.websocket_push import Pusher
        from tidegate.notifications.websocket_sender import WebSocketSender
        from tidegate.notifications.websocket_store import ConnectionStore, WatchStore
        from tidegate.notifications.websocket_tickets import Tickets

        settings, clock, table = app.settings, app.clock, app.table
        self.topic = Topic(app.sns, settings.notifications_topic_arn)
        self.notifier = Notifier(self.topic, Outbox(table))

        deliveries = DeliveryStore(table)
        self.callback_queue = CallbackQueue(
            SqsQueue(app.sqs, settings.callbacks_queue_url),
            SqsQueue(app.sqs, settings.callbacks_dead_queue_url),
        )
        project = app.projects.projects.get
        self.callbacks = Callbacks(deliveries, lambda: self.callback_queue, lambda: app.http, project, clock)
        self.deliverer = Deliverer(
            deliveries,
            CircuitBreaker(CircuitStore(table)),
            self.callback_queue,
            app.http,
            app.sign,
            project,
            clock,
            random.SystemRandom().random,
            settings.callback_timeout_seconds,
        )

        self.connections = ConnectionStore(table)
        self.watches = WatchStore(table)
        self.progress = ProgressFeed(self.watches, self.topic, clock)
        self.outgoing = WebSocketSender(settings.ws_endpoint, region(), credentials)
        self.records = RecordLookup(app.record_lookups, app.batched_record_lookups)
        self.tickets = Tickets(self.connections, clock)
        self.websocket = WebSocketClients(
            self.connections,
            self.watches,
            self.records,
            self.outgoing,
            app.projects.authentication.is_active,
            lambda: app.distribution.fleet,
            clock,
        )
        self.pusher = Pusher(self.watches, self.connections, self.records, self.outgoing, clock)


class CompensationPart:
    """The poll that starts what should have started."""

    def __init__(self, app: App) -> None:
        from tidegate.aws.sqs import SqsQueue
        from tidegate.compensation.interval import Pace
        from tidegate.compensation.poll import Compensator
        from tidegate.compensation.store import CompensationStore
        from tidegate.compensation.ticks import TickQueue

        ticks = TickQueue(
            SqsQueue(app.sqs, app.settings.compensation_queue_url),
            SqsQueue(app.sqs, app.settings.admission_queue_url),
        )
        pace = Pace(
            app.settings.compensation_base_seconds,
            app.settings.compensation_longest_seconds,
            app.settings.compensation_overdue_seconds,
        )
        self.poll = Compensator(CompensationStore(app.table), ticks, app.due_handlers, app.clock, pace)


class QueuePart:
    """The request queue: admission, control, recovery, retention."""

    def __init__(self, app: App) -> None:
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
        from tidegate.queue.store import RequestStore
        from tidegate.queue.unique import UniqueRequests

        settings, clock, table = app.settings, app.clock, app.table
        self.policies = policies_from(settings.request_policies)
        capacities = capacities_from(settings.channel_capacities)
        self.store = RequestStore(table)
        self.log = RequestLog(table, clock)
        self.unique = UniqueRequests(table, self.store, clock)
        self.channel_store = ChannelStore(table)
        self.pokes = AdmissionQueue(
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
            self.pokes,
            app.notifications.notifier,
            clock,
            self.policies,
            app.request_views,
            app.request_endings,
        )
        self.bulk = BulkControl(self.store, lambda: self.control)
        self.control = Control(self.queue, self.store, self.pokes, self.runner, clock, app.request_restarts)
        self.channels = Channels(self.channel_store, self.pokes, clock, capacities)
        self.admission = Admission(
            self.store,
            self.channel_store,
            app.projects.store,
            self.runner,
            self.pokes,
            clock,
            self.policies,
            capacities,
            settings.extra_slot_wait_seconds,
        )
        self.recovery = RequestRecovery(
            self.queue, self.admission, self.store, self.channel_store, self.pokes, self.runner, clock
        )

        self._usage = app.projects.usage
        listing = BucketListing(app.s3, settings.files_bucket)
        self.archive = Archive(listing, clock)
        self.retention = Retention(
            RetentionStore(table), app.files.bucket, clock, self.policies, app.request_objects, self.archive
        )
        self.sweep = Sweep(listing, lambda: app.object_owners, clock)

    def project_usage(self, project_id: str) -> dict[str, Any]:
        """What a project uses of its quotas: `{stored_bytes, queued, running: {channel: n}}`."""
        return self._usage.of_project(project_id, [channel.name for channel in self.channels.all()])

    def shown(self, project_id: str, request_id: str) -> dict[str, Any] | None:
        request = self.store.get(project_id, request_id)
        return self.queue.shown(request) if request else None


class DistributionPart:
    """Tasks, Jobs, targets, transfers."""

    def __init__(self, app: App) -> None:
        from tidegate.aws.sfn import Machines
        from tidegate.aws.sqs import SqsQueue
        from tidegate.distribution.close import CloseWindow
        from tidegate.distribution.collect import Collect
        from tidegate.distribution.dispatch import Dispatch
        from tidegate.distribution.executions import JobExecutions
        from tidegate.distribution.finish import Finish
        from tidegate.distribution.fleet.agents import Agents
        from tidegate.distribution.fleet.hosts import Fleet
        from tidegate.distribution.fleet.wakeups import Wakeups
        from tidegate.distribution.job_opener import JobOpener, Windows
        from tidegate.distribution.lookup import Lookup
        from tidegate.distribution.poll import PollTransfer
        from tidegate.distribution.prepare import PrepareFile
        from tidegate.distribution.recovery import Heartbeat, JobRecovery
        from tidegate.distribution.store.agent_inbox import AgentInboxStore
        from tidegate.distribution.store.fleet import FleetStore
        from tidegate.distribution.store.jobs import JobStore
        from tidegate.distribution.store.presences import PresenceStore, SwarmSettingsStore
        from tidegate.distribution.store.targets import TargetStore
        from tidegate.distribution.store.tasks import TaskStore
        from tidegate.distribution.store.transfers import TransferStore
        from tidegate.distribution.submit import Submit
        from tidegate.distribution.swarm.metrics import tell_swarm
        from tidegate.distribution.swarm.planner import SwarmPlanner
        from tidegate.distribution.swarm.presences import Presences
        from tidegate.distribution.target_queue import TargetMessages
        from tidegate.distribution.transfers import most_targets

        settings, clock, table = app.settings, app.clock, app.table
        self.windows = Windows(
            settings.collect_window_seconds,
            settings.collect_grace_seconds,
            settings.job_timeout_seconds,
            settings.record_ttl_seconds,
        )
        self.jobs = JobStore(table, ttl=self.windows.ttl, lasts=self.windows.lasts)
        self.tasks = TaskStore(table)
        self.targets = TargetStore(table, lasts=self.windows.longest)
        self.transfers = TransferStore(table, lasts=self.windows.longest)
        self.inbox = AgentInboxStore(table, ttl=self.windows.ttl)
        self.fleet_store = FleetStore(table)
        self.fleet = Fleet(self.fleet_store, self.inbox, lambda *key: app.projects.api_keys.revoke(*key), clock)
        self.wakeups = Wakeups(SqsQueue(app.sqs, settings.agent_wakeups_queue_url))
        self._app = app
        self.presence_store, self.swarm_settings = PresenceStore(table), SwarmSettingsStore(table)
        self.presences = Presences(self.presence_store, self.swarm_settings, clock)
        self.swarm_planner = SwarmPlanner(
            self.targets, app.files.contents, self.presence_store, self.swarm_settings, clock
        )

        self.executions = JobExecutions(
            Machines(app.sfn),
            settings.download_job_machine_arn,
            grace=self.windows.grace,
            job_timeout=self.windows.job_timeout,
        )
        self.opener = JobOpener(self.jobs, self.executions, clock, self.windows)
        self.target_messages = messages = TargetMessages(SqsQueue(app.sqs, settings.targets_queue_url))
        contents = app.files.contents
        self.submit = Submit(
            self.opener,
            self.tasks,
            contents,
            messages,
            lambda *targets: self.collect.bind(*targets),
            self._check_callback,
            clock,
            self.windows,
        )
        self.collect = Collect(self.jobs, self.tasks, self.targets, self.opener, clock, self.windows)
        self.close_window = CloseWindow(
            self.jobs,
            self.targets,
            clock,
            job_timeout=self.windows.job_timeout,
            transfer_max_targets=most_targets(settings.transfer_engine, settings.transfer_max_targets),
        )

        # GSE's hosts need no agent of ours.
        fleet = self.fleet_store if settings.transfer_engine == "agent" else None
        self.heartbeat = heartbeat = Heartbeat(self.jobs, clock)
        self.recovery = JobRecovery(self.jobs, self.executions, clock)
        self.prepare_file = PrepareFile(contents, app.files.bucket, self.engine, heartbeat)
        self.dispatch = Dispatch(self.jobs, self.targets, self.transfers, contents, self.engine, heartbeat, clock)
        progress = app.notifications.progress.progress
        self.poll_transfer = PollTransfer(
            self.jobs,
            self.targets,
            self.transfers,
            self.engine,
            heartbeat,
            progress,
            fleet,
            clock,
            job_timeout=self.windows.job_timeout,
        )
        told = app.notifications
        self.finish_job = Finish(
            self.jobs,
            self.tasks,
            self.targets,
            self.transfers,
            self.engine,
            told.notifier,
            told.topic,
            clock,
            tell_swarm,
        )
        self.lookup = Lookup(self.jobs, self.tasks, self.targets, fleet, clock)
        self.agents = Agents(self.inbox, app.files.bucket, self.fleet, contents, clock)

    @cached_property
    def engine(self) -> Engine:
        app, settings = self._app, self._app.settings
        if settings.transfer_engine == "gse":
            from tidegate.distribution.engines.gse import gse_engine

            return gse_engine(settings, app.http, app.secretsmanager, self.inbox, self.wakeups, app.clock)
        from tidegate.distribution.engines.agent import AgentEngine

        return AgentEngine(self.inbox, self.wakeups, app.clock, self.swarm_planner)

    @cached_property
    def control(self) -> JobControl:
        from tidegate.distribution.control import JobControl

        return JobControl(self.jobs, self.targets, self.submit, self._app.clock)

    @cached_property
    def enrolments(self) -> Enrolments:
        from tidegate.distribution.fleet.enrolment import Enrolments
        from tidegate.distribution.store.enrolments import EnrolmentStore

        app = self._app
        return Enrolments(
            EnrolmentStore(app.table),
            self.fleet_store,
            lambda: app.projects.api_keys,
            app.projects.projects.get,
            app.clock,
        )

    @cached_property
    def waker(self) -> AgentWaker:
        from tidegate.distribution.fleet.wakeups import AgentWaker

        return AgentWaker(self.fleet_store, self._app.notifications.outgoing, self._app.clock)

    def _check_callback(self, project_id: str, url: str) -> None:
        project = self._app.projects.projects.get(project_id)
        self._app.http.check_url(url, allow_private=project.allow_private_urls, project_id=project.project_id)


class ExportsPart:
    """CSV and Excel files from rows."""

    def __init__(self, app: App) -> None:
        from tidegate.exports.exports import Exports
        from tidegate.exports.model import shown
        from tidegate.exports.objects import ExportBucket
        from tidegate.exports.pull import Puller
        from tidegate.exports.source import SignedSource
        from tidegate.exports.steps import ExportSteps
        from tidegate.exports.store import ExportStore

        settings, clock, queue = app.settings, app.clock, app.queue
        self._app = app
        self.objects = ExportBucket(app.s3, app.files.bucket)
        self.store = ExportStore(app.table)
        self.shown: Callable[[Request], dict[str, Any]] = lambda request: shown(request, clock(), settings.api_url)
        self.exports = Exports(
            queue.queue,
            lambda: queue.control,
            self.store,
            self.objects,
            app.notifications.callbacks.check,
            clock,
            settings.api_url,
        )
        source = SignedSource(app.http, app.sign, app.projects.projects.get, clock)
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
        )

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


class BatchesPart:
    """N items through a business, at a rate."""

    def __init__(self, app: App) -> None:
        from tidegate.batches.batches import Batches
        from tidegate.batches.control import BatchControl
        from tidegate.batches.ends import BatchEnds
        from tidegate.batches.milestones import Milestones
        from tidegate.batches.outcomes import Outcomes
        from tidegate.batches.registry import Registry
        from tidegate.batches.results import ItemResults
        from tidegate.batches.rows.files import RowFiles
        from tidegate.batches.rows.objects import RowBucket
        from tidegate.batches.run.business_calls import BusinessCalls
        from tidegate.batches.run.rate_shares import RateShares
        from tidegate.batches.run.slice import Pace, SliceRunner
        from tidegate.batches.run.store import BatchRunStore
        from tidegate.batches.steps import BatchSteps, Preparations
        from tidegate.batches.store import BatchStore, BusinessStore

        settings, clock, queue, project = app.settings, app.clock, app.queue, app.projects.projects.get
        self._app = app
        self.store = BatchStore(app.table)
        self.runs = runs = BatchRunStore(app.table)
        calls = BusinessCalls(app.http, app.sign, project, clock)
        self.businesses = Registry(BusinessStore(app.table), app.notifications.callbacks.check, clock)
        objects = RowBucket(app.s3, app.files.bucket)
        self.outcomes = outcomes = Outcomes(objects)
        results = ItemResults(app.table)
        self.batches = Batches(self.store, self.businesses, calls, app.files.library, outcomes, results, clock)
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
        prepare = Preparations(
            self.store,
            runs,
            RowFiles(objects, app.files.store.object_of),
            app.http,
            app.sign,
            clock,
            self.businesses.get,
            project,
        )
        pace = Pace(settings.batch_slice_seconds, settings.batch_lease_seconds)
        milestones = Milestones(app.table, app.notifications.notifier, clock)
        shares = RateShares(app.table)
        runner = SliceRunner(self.store, runs, prepare, outcomes, results, shares, milestones, clock, pace)
        progress = app.notifications.progress
        self.machine = BatchSteps(self.store, runner, queue.queue, runs, progress, clock, settings.batch_rounds)
        self.ends = BatchEnds(self.store, runs, clock)

    def _runner_loads(self) -> Mapping[str, tuple[int, int]]:
        """Asked for only where there are several runner channels to choose from."""
        names = [name for name in self._app.settings.batch_channels.split(",") if name]
        if len(names) < 2:
            return {}
        channels = self._app.queue.channels.stats()
        stats = {found.channel: (found.running + found.queued, found.capacity) for found in channels}
        return {name: stats.get(name, (0, 1)) for name in names}

    def shown(self, project_id: str, batch_id: str) -> dict[str, Any] | None:
        batch = self.store.get(project_id, batch_id)
        return self.batches.shown(batch) if batch else None

    def export_logs(self, project_id: str, batch_id: str, who: str) -> str:
        """The lines as an export like any other: queued, rendered, fetched by its task_id."""
        from tidegate.exports.exports import ExportOptions
        from tidegate.exports.model import CSV, ExportSpec, TableSpec

        columns = {"time": "time", "index": "index", "level": "level", "message": "message"}
        rows = self.batches.log_rows(project_id, batch_id)
        spec = ExportSpec(type=CSV, tables=(TableSpec(data=rows, template=columns),))
        options = ExportOptions(name="Batch logs", file_name=f"{batch_id}-logs")
        return self._app.exports.exports.submit(project_id, spec, options, who)


class IngestPart:
    """What brings files into the library: downloads, scans of subscriptions."""

    def __init__(self, app: App) -> None:
        from tidegate.aws.s3_multipart import MultipartStore
        from tidegate.ingest.download import Download
        from tidegate.ingest.fetch import Fetcher
        from tidegate.ingest.library_steps import Associate, Check
        from tidegate.ingest.scan import Scan
        from tidegate.ingest.source_list import SourceReader
        from tidegate.ingest.steps import IngestSteps
        from tidegate.ingest.store import SubscriptionStore
        from tidegate.ingest.submit import IngestSubmit
        from tidegate.ingest.subscriptions import Subscriptions
        from tidegate.ingest.unfinished import UnfinishedStore
        from tidegate.ingest.verify import Verify

        settings, clock, queue, files = app.settings, app.clock, app.queue, app.files.store
        projects = app.projects.projects
        self._files = files
        self.parts = MultipartStore(app.s3, settings.files_bucket)
        self.store = SubscriptionStore(app.table)
        self.unfinished = UnfinishedStore(app.table, clock)
        self.submit = IngestSubmit(
            queue.queue, queue.channels, files, self.store, projects, app.http, clock, queue.unique
        )
        self.sources = SourceReader(app.http)
        self.subscriptions = Subscriptions(
            self.store, queue.store, queue.queue, queue.control, self.submit, self.sources, clock
        )
        parts, credentials = self.parts, app.projects.credentials
        self.steps = IngestSteps(
            queue.queue,
            {
                "download": Download(
                    Fetcher(app.http, parts, self.unfinished), parts, files, projects, credentials, self.unfinished
                ),
                "scan": Scan(self.sources, self.store, self.submit, projects, credentials, clock),
                "associate": Associate(parts, files),
                "check": Check(app.http, parts, files, projects, credentials),
                "verify": Verify(app.files.uploads),
            },
            app.notifications.progress.progress,
            queue.log,
            clock,
        )

    def without_file(self, ended: Request) -> list[Any]:
        """A file that will not come says so; the subscription's next scan takes it for new."""
        if ended.status == "completed" or "file_id" not in ended.payload:
            return []
        why = ended.error["detail"] if ended.error else ended.status
        writes: list[Any] = self._files.lost_writes(ended.project_id, str(ended.payload["file_id"]), why)
        if ended.subscription_id and "source_url" in ended.payload:
            url = str(ended.payload["source_url"])
            writes += self.store.forget_writes(ended.project_id, ended.subscription_id, url)
        return writes

    def with_file_again(self, request: Request) -> list[Any]:
        """A failed request that is retried: its file is on its way again, and scans know of it."""
        payload = request.payload
        brings = request.type == "download"
        writes: list[Any] = self._files.again_writes(
            request.project_id, str(payload.get("file_id")), brings_content=brings
        )
        if request.subscription_id and payload.get("fingerprint"):
            entry = (str(payload["source_url"]), str(payload["fingerprint"]))
            writes += self.store.remember_writes(request.project_id, request.subscription_id, *entry)
        return writes


def _utc_now() -> datetime:
    return datetime.now(UTC)


class App:
    def __init__(self, settings: Settings | None = None, clock: Clock = _utc_now) -> None:
        self.settings = settings or Settings.from_env()
        self.clock = clock
        self.dynamodb = lazy_client("dynamodb")
        self.s3 = lazy_client("s3")
        self.sqs = lazy_client("sqs")
        self.sns = lazy_client("sns")
        self.sfn = lazy_client("stepfunctions")
        self.secretsmanager = lazy_client("secretsmanager")
        self.ssm = lazy_client("ssm")

    @cached_property
    def table(self) -> Table:
        from tidegate.aws.table import Table

        return Table(self.dynamodb, self.settings.table_name)

    @cached_property
    def http(self) -> SafeHttp:
        """The one client for URLs that callers name."""
        from tidegate.aws.host_usage import HostUsage
        from tidegate.http.client import SafeHttp
        from tidegate.http.host_limits import HostLimits

        settings, runtime_api = self.settings, os.environ.get("AWS_LAMBDA_RUNTIME_API")
        return SafeHttp(
            allowed_hosts=settings.url_allow_list.split(","),
            refused_endpoints=filter(None, [runtime_api]),
            # On AWS only Lambda's own services listen there; a local cloud's functions reach their test servers so.
            loopback=not runtime_api or "AWS_ENDPOINT_URL" in os.environ,
            host_limits=HostLimits(
                lambda *use: HostUsage(self.table, self.clock).add(*use),
                settings.host_calls_per_second,
                settings.host_connections,
            ),
        )

    @cached_property
    def sign(self) -> Callable[..., dict[str, str]]:
        """Standard Webhooks headers of a message, signed with every secret of the project that is valid now."""
        from tidegate.http.signing import signed_headers

        secrets = self.projects.callback_secrets

        def sign(project: Project, message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]:
            return signed_headers(secrets.of(project), message_id, now, body)

        return sign

    # --- capabilities, in the order of the import contract

    @cached_property
    def projects(self) -> ProjectsPart:
        return ProjectsPart(self)

    @cached_property
    def files(self) -> FilesPart:
        return FilesPart(self)

    @cached_property
    def notifications(self) -> NotificationsPart:
        return NotificationsPart(self)

    @cached_property
    def compensation(self) -> CompensationPart:
        return CompensationPart(self)

    @cached_property
    def queue(self) -> QueuePart:
        return QueuePart(self)

    @cached_property
    def distribution(self) -> DistributionPart:
        return DistributionPart(self)

    @cached_property
    def exports(self) -> ExportsPart:
        return ExportsPart(self)

    @cached_property
    def batches(self) -> BatchesPart:
        return BatchesPart(self)

    @cached_property
    def ingest(self) -> IngestPart:
        return IngestPart(self)

    # --- registries: how capabilities below reach those above without importing them

    @cached_property
    def record_lookups(self) -> dict[str, Lookup]:
        """Prefix of an id → (project_id, record_id) → the record as its route shows it."""
        return {
            "AsyncDownloadTask": lambda project, record: _found(self.distribution.lookup.task, project, record),
            "AsyncDownloadJob": lambda project, record: _found(self.distribution.lookup.job, project, record),
            "req-": lambda project, record: self.queue.shown(project, record),
            "exp-": lambda project, record: self.queue.shown(project, record),
            "bat-": lambda project, record: self.batches.shown(project, record),
        }

    @cached_property
    def batched_record_lookups(self) -> dict[str, BatchLookup]:
        """Prefix of an id → (project_id, record_ids) → the records that are there: for many, in a few reads."""

        def tasks(project_id: str, task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
            found = self.distribution.lookup.tasks_by_id(project_id, task_ids)
            return {task_id: _without_none(record) for task_id, record in found.items()}

        return {"AsyncDownloadTask": tasks}

    @cached_property
    def due_handlers(self) -> dict[str, DueHandler]:
        """`due_kind` of an overdue record → what moves it on."""
        from tidegate.notifications.delivery_store import delivery_of
        from tidegate.notifications.outbox import notice_of
        from tidegate.projects.key_store import key_of

        told = self.notifications
        return {
            "key": lambda item: self.projects.api_keys.finish_end(key_of(item)),
            "notice": lambda item: told.notifier.send([notice_of(item)]),
            "callback": lambda item: told.callback_queue.later(delivery_of(item), 0),
            "request": lambda item: self.queue.recovery.request(item["project_id"], item["request_id"]),
            "channel": lambda item: self.queue.recovery.channel(item["name"]),
            "job": lambda item: self.distribution.recovery.look(item["project_id"], item["key"]),
            "subscription": lambda item: self.ingest.subscriptions.finish_delete(
                item["project_id"], item["subscription_id"]
            ),
            "batch_ask": lambda item: self.batches.control.ask_again(item["project_id"], item["batch_id"]),
            "batch_wait": lambda item: self.batches.control.give_up_waiting(item["project_id"], item["batch_id"]),
        }

    @cached_property
    def request_views(self) -> dict[str, View]:
        """Type of a request → how its end is told, where not as the request itself."""
        return {
            "export": lambda request: self.exports.shown(request),
            "batch": lambda request: self.batches.ends.shown(request),
        }

    @cached_property
    def request_endings(self) -> dict[str, Ending]:
        """Type of a request → what else is written in the transaction that ends it."""
        return {
            "download": lambda ended: self.ingest.without_file(ended),
            "associate": lambda ended: self.ingest.without_file(ended),
            "verify": lambda ended: self.ingest.without_file(ended),
            "export": lambda ended: self.exports.store.ending(ended),
            "batch": lambda ended: self.batches.ends.writes(ended),
        }

    @cached_property
    def request_restarts(self) -> dict[str, Ending]:
        """Type of a request → what else is written in the transaction that retries a failed one."""
        return {
            "download": lambda request: self.ingest.with_file_again(request),
            "associate": lambda request: self.ingest.with_file_again(request),
        }

    @cached_property
    def request_objects(self) -> dict[str, Objects]:
        """Type of a request → the keys of the objects that go when it is past its retention."""
        from tidegate.exports.model import owned_objects

        return {"export": owned_objects}

    @cached_property
    def object_owners(self) -> list[Any]:
        """Who owns which objects of the bucket, for the daily sweep."""
        from tidegate.aws import keys
        from tidegate.exports.objects import still_rendered, still_staged
        from tidegate.queue.retention.object_owners import RecordOwners

        return [
            RecordOwners(self.table, "content/", keys.content),
            RecordOwners(self.table, "rows/", keys.content),
            RecordOwners(self.table, "batches/", keys.batch),
            RecordOwners(self.table, "pieces/", keys.content),
            RecordOwners(self.table, "exports/", keys.request, still_rendered),
            RecordOwners(self.table, "staging/", keys.request, still_staged),
        ]


def _found(read: Callable[[str, str], dict[str, Any]], project_id: str, record_id: str) -> dict[str, Any] | None:
    try:
        return _without_none(read(project_id, record_id))
    except RecordNotFound:
        return None


def _without_none(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


_installed: App | None = None


def app() -> App:
    global _installed
    if _installed is None:
        _installed = App()
    return _installed


def install(application: App | None) -> None:
    """Puts another App in its place, or None for a new one at the next call: a test's clock comes in here."""
    global _installed
    _installed = application
