"""The composition root: wires every capability when a function first uses it.

Read this file first. It has the settings and clients, then the capabilities in the order of the import contract, then
the registries that connect the capabilities. Each capability is one object. The steps of a capability are functions
that get this object.

The module of a capability is imported when the capability is first used. One import adds 5 to 50 ms to a cold start, or
200 ms for exports, which use openpyxl. A function needs only two or three capabilities. `tests/bench/cold_start.py`
measures these times.
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
    from tidegate.aws.table import Table
    from tidegate.batches import Batches
    from tidegate.compensation.freeze import Freeze
    from tidegate.compensation.poll import Compensator, DueHandler
    from tidegate.distribution import Distribution
    from tidegate.exports import Exports
    from tidegate.files import Files
    from tidegate.files.model import File
    from tidegate.http.client import SafeHttp
    from tidegate.ingest import Ingest
    from tidegate.notifications import Notifications
    from tidegate.notifications.websocket import BatchLookup
    from tidegate.projects import Tenancy
    from tidegate.queue.model import Request
    from tidegate.queue.queue import Ending, Queue, View
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
        from tidegate.http.connections import HostLimits

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

    # --- capabilities, in the order of the import contract

    @cached_property
    def projects(self) -> Tenancy:
        from tidegate.projects import Tenancy

        def close_connections(record_id: str) -> int:
            from tidegate.notifications.websocket import close_connections_of_key

            return close_connections_of_key(self.notifications.connections, self.notifications.outgoing, record_id)

        return Tenancy(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            ssm=self.ssm,
            secretsmanager=self.secretsmanager,
            close_connections=close_connections,
        )

    @cached_property
    def files(self) -> Files:
        from tidegate.files import Files
        from tidegate.files.model import seconds_to_read

        def queue_verification(file: File, writes: Sequence[Any], who: str) -> None:
            queue = self.queue
            queue.submit(
                file.project_id,
                "verify",
                payload={"file_id": file.file_id},
                request_id=file.request_id,
                callback=file.callback,
                extra_writes=writes,
                timeout=queue.policy("verify").timeout + seconds_to_read(file.size),
                who=who,
            )

        return Files(
            bucket_name=self.settings.files_bucket,
            clock=self.clock,
            table=self.table,
            s3=self.s3,
            queue_verification=queue_verification,
        )

    @cached_property
    def notifications(self) -> Notifications:
        from tidegate.compensation.freeze import CALLBACK_WAIT_SECONDS
        from tidegate.notifications import Notifications

        return Notifications(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            sns=self.sns,
            sqs=self.sqs,
            http=lambda: self.http,
            sign=lambda: self.projects.callback_secrets.sign,
            project_of=self.projects.projects.get,
            frozen_for=lambda: CALLBACK_WAIT_SECONDS if self.freeze.is_on else 0.0,
            key_is_active=self.projects.authentication.is_active,
            limit_socket=self.projects.limit_socket,
            presence=lambda: self.distribution.fleet,
            lookups=self.record_lookups,
            batched_lookups=self.batched_record_lookups,
        )

    @cached_property
    def compensation(self) -> Compensator:
        from tidegate.aws.clients import SqsQueue
        from tidegate.compensation.poll import CompensationStore, Compensator, Pace, TickQueue

        settings = self.settings
        ticks = TickQueue(
            SqsQueue(self.sqs, settings.compensation_queue_url), SqsQueue(self.sqs, settings.admission_queue_url)
        )
        pace = Pace(
            settings.compensation_base_seconds,
            settings.compensation_longest_seconds,
            settings.compensation_overdue_seconds,
        )
        return Compensator(CompensationStore(self.table), ticks, self.due_handlers, self.freeze, self.clock, pace)

    @cached_property
    def queue(self) -> Queue:
        from tidegate.queue.queue import Queue

        return Queue(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            sqs=self.sqs,
            s3=self.s3,
            machines=self.machines,
            freeze=self.freeze,
            project_store=self.projects.store,
            usage=self.projects.usage,
            notifier=self.notifications.notifier,
            views=self.request_views,
            endings=self.request_endings,
            restarts=self.request_restarts,
            objects_of=self.request_objects,
            object_owners=lambda: self.object_owners,
        )

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
            cloudwatch=self.cloudwatch,
            machine_arn=self.settings.release_machine_arn,
            runner_time=self.projects.runner_time,
        )

    @cached_property
    def exports(self) -> Exports:
        from tidegate.exports import Exports

        projects = self.projects
        return Exports(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            s3=self.s3,
            dynamodb=self.dynamodb,
            http=self.http,
            sign=self.projects.callback_secrets.sign,
            bucket=self.files.bucket,
            queue=self.queue,
            projects=projects.projects,
            project_store=projects.store,
            credentials=projects.credentials,
            root_secret=projects.root_secret,
            check_urls=self.notifications.callbacks.check,
            topic=self.notifications.topic,
            runner_time=projects.runner_time,
        )

    @cached_property
    def batches(self) -> Batches:
        from tidegate.batches import Batches

        projects, notifications = self.projects, self.notifications
        return Batches(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            s3=self.s3,
            http=self.http,
            sign=self.projects.callback_secrets.sign,
            bucket=self.files.bucket,
            library=self.files.library,
            object_of=self.files.store.object_of,
            project=projects.projects.get,
            quotas=projects.store.quotas,
            runner_time=projects.runner_time,
            check_urls=notifications.callbacks.check,
            notifier=notifications.notifier,
            topic=notifications.topic,
            queue=self.queue,
            require_source=lambda *order: self.exports.allowed_sources.require(*order),
        )

    @cached_property
    def ingest(self) -> Ingest:
        from tidegate.ingest import Ingest

        return Ingest(
            settings=self.settings,
            clock=self.clock,
            table=self.table,
            s3=self.s3,
            http=self.http,
            queue=self.queue,
            files=self.files.store,
            bucket=self.files.bucket,
            uploads=lambda: self.files.uploads,
            library=lambda: self.files.library,
            projects=self.projects.projects,
            credentials=self.projects.credentials,
            topic=self.notifications.topic,
            runner_time=self.projects.runner_time,
        )

    # --- registries: through these a capability uses one that it may not import

    def thaw(self, who: str) -> None:
        """Ends a freeze and starts all work that is due."""
        self.freeze.thaw(who)
        # Also if the system is thawed already: the call that did it may have died here, and compensation comes later.
        for channel in self.queue.channels.all():
            self.queue.admission_queue.trigger_anew(channel.name)
        self.compensation.trigger(who)

    def stop_executions(self, most: int) -> tuple[int, bool]:
        """Stops up to `most` running executions of Jobs and requests.

        Returns how many, and whether more may be running. Used after the table was restored, because the restored table
        does not know these executions.
        """
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
        """Maps the prefix of an id to the function that finds a record with such an id.

        The function gets (project_id, record_id). It returns the record as its route shows it, or None.
        """

        def request_view(project_id: str, request_id: str) -> dict[str, Any] | None:
            return self.queue.views_by_id(project_id, [request_id]).get(request_id)

        return {
            "AsyncDownloadTask": lambda project, record: _found(self.distribution.lookup.task, project, record),
            "AsyncDownloadJob": lambda project, record: _found(self.distribution.lookup.job, project, record),
            "req-": request_view,
            "exp-": request_view,
            "bat-": lambda project, record: self.batches.view(project, record),
        }

    @cached_property
    def batched_record_lookups(self) -> dict[str, BatchLookup]:
        """Maps the prefix of an id to the function that finds several records with such ids, with few reads.

        The function gets (project_id, record_ids). It returns the records that exist, by id.
        """

        def tasks(project_id: str, task_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
            found = self.distribution.lookup.tasks_by_id(project_id, task_ids)
            return {task_id: _without_none(record) for task_id, record in found.items()}

        def jobs(project_id: str, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
            found = self.distribution.lookup.jobs_by_id(project_id, job_ids)
            return {job_id: _without_none(record) for job_id, record in found.items()}

        return {
            "AsyncDownloadTask": tasks,
            "AsyncDownloadJob": jobs,
            "req-": lambda project, records: self.queue.views_by_id(project, records),
            "exp-": lambda project, records: self.queue.views_by_id(project, records),
            "bat-": lambda project, records: self.batches.views(project, records),
        }

    @cached_property
    def due_handlers(self) -> dict[str, DueHandler]:
        """Maps the `due_kind` of an overdue record to the function that continues the record's work."""
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

        def recover_request(item: Mapping[str, Any]) -> bool | str:
            from tidegate.queue.control import recover_request

            return recover_request(self.queue, item["project_id"], item["request_id"])

        def recover_channel(item: Mapping[str, Any]) -> bool:
            from tidegate.queue.control import recover_channel

            return recover_channel(self.queue, item["name"])

        def finish_delete(item: Mapping[str, Any]) -> None:
            from tidegate.ingest.subscriptions import finish_delete

            finish_delete(self.ingest, item["project_id"], item["subscription_id"])

        return {
            "key": lambda item: self.projects.api_keys.finish_end(key_of(item)),
            "notice": lambda item: notifications.notifier.send([notice_of(item)]),
            "callback": lambda item: notifications.callback_queue.later(delivery_of(item), 0),
            "request": recover_request,
            "channel": recover_channel,
            "job": restart_job,
            "release": watch_release,
            "subscription": finish_delete,
            **dict.fromkeys(
                ("batch_ask", "batch_wait", "batch_unstarted", "batch_ended", "batch_deleted"),
                lambda item: self.batches.act_when_due(item),
            ),
        }

    @cached_property
    def request_views(self) -> dict[str, View]:
        """Maps a type of request to the function that returns what callers and notices see of such a request.

        A request of any other type is shown as it is.
        """

        def view_of_export(request: Request) -> dict[str, Any]:
            # Not by `orders`: that would import the writers of files into every function that ends a request.
            from tidegate.exports.model import export_view

            return export_view(request, self.clock(), self.settings.api_url)

        return {"export": view_of_export, "batch": lambda request: self.batches.view_at_end(request)}

    @cached_property
    def request_endings(self) -> dict[str, Ending]:
        """Maps a type of request to a function that returns writes.

        These writes are added to the transaction that ends such a request.
        """
        return {
            "download": lambda ended: self.ingest.without_file(ended),
            "associate": lambda ended: self.ingest.without_file(ended),
            "verify": lambda ended: self.ingest.without_file(ended),
            "export": lambda ended: self.exports.store.ending(ended),
            "batch": lambda ended: self.batches.end_writes(ended),
        }

    @cached_property
    def request_restarts(self) -> dict[str, Ending]:
        """Maps a type of request to a function that returns writes.

        These writes are added to the transaction that retries such a request after it failed.
        """
        return {
            "download": lambda request: self.ingest.with_file_again(request),
            "associate": lambda request: self.ingest.with_file_again(request),
            "verify": lambda request: self.ingest.with_file_again(request),
        }

    @cached_property
    def request_objects(self) -> dict[str, Callable[[Request], Sequence[str]]]:
        """Maps a type of request to the function that returns the keys of the request's objects.

        These objects are deleted when the request is past its retention.
        """
        return {"export": lambda request: self.exports.owned_objects(request)}

    @cached_property
    def object_owners(self) -> list[Any]:
        """Returns for each prefix of the bucket which records own the objects there. The daily sweep uses this list."""
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
    """Replaces the process's App, for tests. With None, the next call of `app` makes a new App."""
    global _installed
    _installed = application
