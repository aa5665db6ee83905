"""The composition root: wires every capability when a function first uses it.

Read this file first: settings and clients, the capabilities in the order of the import contract, and the registries
that connect them. Distribution and exports are one object each, of which their steps are functions; the wiring of the
other capabilities is in the modules beside this one.

A capability's module is imported at its first use. Importing one adds 5 to 50 ms to a cold start (exports with
openpyxl 200 ms), and a function needs only two or three. `tests/bench/cold_start.py` measures it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.aws.clients import Machines, lazy_client
from tidegate.common.ids import Clock
from tidegate.errors import RecordNotFound
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.app.batches import BatchesPart
    from tidegate.app.compensation import CompensationPart
    from tidegate.app.files import FilesPart
    from tidegate.app.ingest import IngestPart
    from tidegate.app.notifications import NotificationsPart
    from tidegate.app.projects import ProjectsPart
    from tidegate.app.queue import QueuePart
    from tidegate.aws.table import Table
    from tidegate.compensation.freeze import Freeze
    from tidegate.compensation.poll import DueHandler
    from tidegate.distribution import Distribution
    from tidegate.exports import Exports
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.websocket import BatchLookup
    from tidegate.projects.model import Project
    from tidegate.queue.queue import Ending, View
    from tidegate.queue.retention import Objects
    from tidegate.releases import Releases

    Lookup = Callable[[str, str], dict[str, Any] | None]


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
        self.cloudwatch = lazy_client("cloudwatch")

    @cached_property
    def table(self) -> Table:
        from tidegate.aws.table import DueShards, Table

        return Table(self.dynamodb, self.settings.table_name, due_shards=DueShards(self.clock))

    @cached_property
    def freeze(self) -> Freeze:
        from tidegate.compensation.freeze import Freeze

        return Freeze(self.table, self.clock)

    @cached_property
    def machines(self) -> Machines:
        return Machines(self.sfn)

    @cached_property
    def http(self) -> SafeHttp:
        """The only HTTP client that may be used for URLs from callers."""
        from tidegate.aws.host_usage import HostUsage
        from tidegate.http.client import SafeHttp
        from tidegate.http.host_limits import HostLimits

        settings, runtime_api = self.settings, os.environ.get("AWS_LAMBDA_RUNTIME_API")
        return SafeHttp(
            allowed_hosts=settings.url_allow_list.split(","),
            refused_endpoints=filter(None, [runtime_api]),
            # In Lambda, only Lambda's own services listen on loopback. On a developer's machine, test servers do.
            loopback=not runtime_api or "AWS_ENDPOINT_URL" in os.environ,
            host_limits=HostLimits(
                lambda *use: HostUsage(self.table, self.clock).add(*use),
                settings.host_calls_per_second,
                settings.host_connections,
            ),
        )

    @cached_property
    def sign(self) -> Callable[..., dict[str, str]]:
        """Returns the Standard Webhooks headers of a request, with a signature for each secret that is valid for it."""
        from tidegate.http.guard import origin_of_text
        from tidegate.http.signing import signed_headers

        secrets = self.projects.callback_secrets

        def sign(project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str) -> dict[str, str]:
            shared = secrets.of(project) if project.shared_signatures else ()
            of_origin = secrets.of_origin(project, origin_of_text(url))
            return signed_headers(shared, message_id, now, body, of_origin=of_origin, url=url)

        return sign

    # --- capabilities, in the order of the import contract

    @cached_property
    def projects(self) -> ProjectsPart:
        from tidegate.app.projects import ProjectsPart

        return ProjectsPart(self)

    @cached_property
    def files(self) -> FilesPart:
        from tidegate.app.files import FilesPart

        return FilesPart(self)

    @cached_property
    def notifications(self) -> NotificationsPart:
        from tidegate.app.notifications import NotificationsPart

        return NotificationsPart(self)

    @cached_property
    def compensation(self) -> CompensationPart:
        from tidegate.app.compensation import CompensationPart

        return CompensationPart(self)

    @cached_property
    def queue(self) -> QueuePart:
        from tidegate.app.queue import QueuePart

        return QueuePart(self)

    @cached_property
    def distribution(self) -> Distribution:
        from tidegate.distribution import Distribution

        projects, notifications = self.projects, self.notifications
        return Distribution(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            sqs=self.sqs,
            machines=self.machines,
            freeze=self.freeze,
            secretsmanager=self.secretsmanager,
            http=self.http,
            bucket=self.files.bucket,
            contents=self.files.contents,
            projects=projects.projects,
            project_store=projects.store,
            usage=projects.usage,
            api_keys=lambda: projects.api_keys,
            notifier=notifications.notifier,
            topic=notifications.topic,
            progress=notifications.progress,
            outgoing=notifications.outgoing,
        )

    @cached_property
    def releases(self) -> Releases:
        from tidegate.releases import Releases

        return Releases(
            table=self.table,
            clock=self.clock,
            distribution=self.distribution,
            files=self.files.store,
            machine_arn=self.settings.release_machine_arn,
        )

    @cached_property
    def exports(self) -> Exports:
        from tidegate.exports import Exports

        projects, queue = self.projects, self.queue
        return Exports(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            s3=self.s3,
            dynamodb=self.dynamodb,
            http=self.http,
            sign=self.sign,
            bucket=self.files.bucket,
            queue=queue.queue,
            control=lambda: queue.control,
            projects=projects.projects,
            project_store=projects.store,
            credentials=projects.credentials,
            check_urls=self.notifications.callbacks.check,
            progress=self.notifications.progress,
            runner_time=projects.runner_time,
        )

    @cached_property
    def batches(self) -> BatchesPart:
        from tidegate.app.batches import BatchesPart

        return BatchesPart(self)

    @cached_property
    def ingest(self) -> IngestPart:
        from tidegate.app.ingest import IngestPart

        return IngestPart(self)

    # --- registries: through these a capability uses one that it may not import

    def thaw(self, who: str) -> None:
        """Ends a freeze and starts all that is due."""
        self.freeze.thaw(who)
        # Also if it was thawed before: that call may have died here. Compensation would find all of it a little later.
        for channel in self.queue.channels.all():
            self.queue.admission_queue.trigger_anew(channel.name)
        self.compensation.poll.trigger(who)

    def stop_executions(self, most: int) -> tuple[int, bool]:
        """Stops executions of all machines. Returns (how many were stopped, whether more may run).

        After the table was restored, they are of a time that the table does not know."""
        settings, stopped = self.settings, 0
        for machine in (
            settings.download_job_machine_arn,
            settings.ingest_machine_arn,
            settings.export_machine_arn,
            settings.batch_machine_arn,
        ):
            for name in self.machines.running(machine, most - stopped) if stopped < most else ():
                self.machines.stop(machine, name, "the table was restored")
                stopped += 1
        return stopped, stopped >= most

    @cached_property
    def record_lookups(self) -> dict[str, Lookup]:
        """Prefix of an id → a function of (project_id, record_id) that returns the record as its route shows it."""
        return {
            "AsyncDownloadTask": lambda project, record: _found(self.distribution.lookup.task, project, record),
            "AsyncDownloadJob": lambda project, record: _found(self.distribution.lookup.job, project, record),
            "req-": lambda project, record: self.queue.shown(project, record),
            "exp-": lambda project, record: self.queue.shown(project, record),
            "bat-": lambda project, record: self.batches.shown(project, record),
        }

    @cached_property
    def batched_record_lookups(self) -> dict[str, BatchLookup]:
        """Prefix of an id → a function of (project_id, record_ids) that returns those that exist, with few reads."""

        def tasks(project_id: str, task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
            found = self.distribution.lookup.tasks_by_id(project_id, task_ids)
            return {task_id: _without_none(record) for task_id, record in found.items()}

        def jobs(project_id: str, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
            found = self.distribution.lookup.jobs_by_id(project_id, job_ids)
            return {job_id: _without_none(record) for job_id, record in found.items()}

        return {
            "AsyncDownloadTask": tasks,
            "AsyncDownloadJob": jobs,
            "req-": lambda project, records: self.queue.shown_many(project, records),
            "exp-": lambda project, records: self.queue.shown_many(project, records),
            "bat-": lambda project, records: self.batches.batches.get_many(project, records),
        }

    @cached_property
    def due_handlers(self) -> dict[str, DueHandler]:
        """`due_kind` of an overdue record → what continues its work."""
        from tidegate.notifications.deliveries import delivery_of
        from tidegate.notifications.notices import notice_of
        from tidegate.projects.keys import key_of

        notifications = self.notifications

        def restart_job(item: Mapping[str, Any]) -> bool:
            from tidegate.distribution.control import restart_if_dead

            return restart_if_dead(self.distribution, item["project_id"], item["key"])

        def watch_release(item: Mapping[str, Any]) -> bool:
            from tidegate.releases.rollout import restart_if_dead

            return restart_if_dead(self.releases, item["project_id"], item["name"])

        return {
            "key": lambda item: self.projects.api_keys.finish_end(key_of(item)),
            "notice": lambda item: notifications.notifier.send([notice_of(item)]),
            "callback": lambda item: notifications.callback_queue.later(delivery_of(item), 0),
            "request": lambda item: self.queue.recovery.request(item["project_id"], item["request_id"]),
            "channel": lambda item: self.queue.recovery.channel(item["name"]),
            "job": restart_job,
            "release": watch_release,
            "subscription": lambda item: self.ingest.subscriptions.finish_delete(
                item["project_id"], item["subscription_id"]
            ),
            "batch_ask": lambda item: self.batches.control.ask_again(item["project_id"], item["batch_id"]),
            "batch_unstarted": lambda item: self.batches.batches.delete_unstarted(item["project_id"], item["batch_id"]),
            "batch_wait": lambda item: self.batches.control.give_up_waiting(item["project_id"], item["batch_id"]),
        }

    @cached_property
    def request_views(self) -> dict[str, View]:
        """Type of a request → what notices show of it, if not the request itself."""
        return {
            "export": lambda request: self.exports.shown(request),
            "batch": lambda request: self.batches.ends.shown(request),
        }

    @cached_property
    def request_endings(self) -> dict[str, Ending]:
        """Type of a request → further writes of the transaction that ends it."""
        return {
            "download": lambda ended: self.ingest.without_file(ended),
            "associate": lambda ended: self.ingest.without_file(ended),
            "verify": lambda ended: self.ingest.without_file(ended),
            "export": lambda ended: self.exports.store.ending(ended),
            "batch": lambda ended: self.batches.ends.writes(ended),
        }

    @cached_property
    def request_restarts(self) -> dict[str, Ending]:
        """Type of a request → further writes of the transaction that retries a failed one."""
        return {
            "download": lambda request: self.ingest.with_file_again(request),
            "associate": lambda request: self.ingest.with_file_again(request),
            "verify": lambda request: self.ingest.with_file_again(request),
        }

    @cached_property
    def request_objects(self) -> dict[str, Objects]:
        """Type of a request → the keys of the objects to delete when it is past its retention."""
        return {"export": lambda request: self.exports.owned_objects(request)}

    @cached_property
    def object_owners(self) -> list[Any]:
        """For the daily sweep: which records own the objects under each prefix of the bucket."""
        from tidegate.aws import keys
        from tidegate.exports.store import still_rendered, still_staged
        from tidegate.files.reading import OF_CONTENTS, OF_REQUESTS
        from tidegate.queue.retention import RecordOwners
        from tidegate.queue.store import request_from

        return [
            RecordOwners(self.table, "content/", keys.content),
            RecordOwners(self.table, "rows/", keys.content),
            RecordOwners(self.table, "batches/", keys.batch),
            RecordOwners(self.table, "pieces/", keys.content),
            RecordOwners(self.table, "exports/", keys.request, still_rendered),
            RecordOwners(self.table, "staging/", keys.request, still_staged),
            RecordOwners(self.table, OF_REQUESTS, keys.request, lambda item, _: not request_from(item).is_over),
            RecordOwners(self.table, OF_CONTENTS, keys.content, lambda item, _: not item.get("pieces_sha256")),
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
    """The process's App, which is made at the first call."""
    global _installed
    if _installed is None:
        _installed = App()
    return _installed


def install(application: App | None) -> None:
    """Replaces the process's App, for tests. After None, the next call of `app` makes a new one."""
    global _installed
    _installed = application
