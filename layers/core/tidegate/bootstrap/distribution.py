"""Windowed distribution: Tasks, Jobs, targets, transfers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.notifications import NotificationsWiring
from tidegate.bootstrap.outbound import OutboundWiring
from tidegate.errors import RecordNotFound

if TYPE_CHECKING:
    from tidegate.compensation.poll import DueHandler
    from tidegate.distribution.agents import Agents
    from tidegate.distribution.close import CloseWindow
    from tidegate.distribution.collect import Collect
    from tidegate.distribution.dispatch import Dispatch
    from tidegate.distribution.executions import JobExecutions
    from tidegate.distribution.finish import Finish
    from tidegate.distribution.job_opener import JobDoor, Windows
    from tidegate.distribution.lookup import Lookup
    from tidegate.distribution.poll import Poll
    from tidegate.distribution.ports import Engine
    from tidegate.distribution.prepare import PrepareFile
    from tidegate.distribution.recovery import Heartbeat, Watch
    from tidegate.distribution.store.agent_inbox import OrderRepository
    from tidegate.distribution.store.jobs import JobRepository
    from tidegate.distribution.store.targets import TargetRepository
    from tidegate.distribution.store.tasks import TaskRepository
    from tidegate.distribution.store.transfers import TransferRepository
    from tidegate.distribution.submit import Submit
    from tidegate.files.contents import ContentRepository


class DistributionWiring(LibraryWiring, NotificationsWiring, OutboundWiring):
    @cached_property
    def windows(self) -> Windows:
        from tidegate.distribution.job_opener import Windows

        given = self.settings
        return Windows(
            given.collect_window_seconds,
            given.collect_grace_seconds,
            given.job_timeout_seconds,
            given.record_ttl_seconds,
        )

    @cached_property
    def job_store(self) -> JobRepository:
        from tidegate.distribution.store.jobs import JobRepository

        return JobRepository(self.table, ttl=self.windows.ttl, lasts=self.windows.lasts)

    @cached_property
    def task_store(self) -> TaskRepository:
        from tidegate.distribution.store.tasks import TaskRepository

        return TaskRepository(self.table)

    @cached_property
    def target_store(self) -> TargetRepository:
        from tidegate.distribution.store.targets import TargetRepository

        return TargetRepository(self.table, lasts=self.windows.longest)

    @cached_property
    def transfer_store(self) -> TransferRepository:
        from tidegate.distribution.store.transfers import TransferRepository

        return TransferRepository(self.table, lasts=self.windows.longest)

    @cached_property
    def order_store(self) -> OrderRepository:
        from tidegate.distribution.store.agent_inbox import OrderRepository

        return OrderRepository(self.table, ttl=self.windows.ttl)

    @cached_property
    def content_store(self) -> ContentRepository:
        from tidegate.files.contents import ContentRepository

        return ContentRepository(self.table)

    @cached_property
    def job_executions(self) -> JobExecutions:
        from tidegate.aws.sfn import Machines
        from tidegate.distribution.executions import JobExecutions

        return JobExecutions(
            Machines(self.sfn),
            self.settings.download_job_machine_arn,
            grace=self.windows.grace,
            job_timeout=self.windows.job_timeout,
        )

    @cached_property
    def engine(self) -> Engine:
        if self.settings.transfer_engine == "gse":
            return self._gse()
        from tidegate.distribution.engines.agent import AgentEngine

        return AgentEngine(self.order_store, self.clock)

    def _gse(self) -> Engine:
        from tidegate.distribution.engines.gse import GseConfig, GseEngine
        from tidegate.distribution.targets import Target

        given = self.settings
        config = GseConfig(
            given.gse_base_url,
            given.gse_tenant_id,
            Target(given.gse_source_agent_id, given.gse_source_container_id),
            given.gse_source_user,
            given.gse_store_dir,
        )
        return GseEngine(self.http, config, self._gse_credentials, self.order_store, self.clock)

    def _gse_credentials(self) -> dict[str, str]:
        return self._gse_secret

    @cached_property
    def _gse_secret(self) -> dict[str, str]:
        stored = self.secretsmanager.get_secret_value(SecretId=self.settings.gse_credentials_id)
        secret: dict[str, str] = json.loads(stored["SecretString"])
        return secret

    @cached_property
    def job_door(self) -> JobDoor:
        from tidegate.distribution.job_opener import JobDoor

        return JobDoor(self.job_store, self.job_executions, self.clock, self.windows)

    @cached_property
    def submit(self) -> Submit:
        from tidegate.aws.sqs import Queue
        from tidegate.distribution.submit import Submit
        from tidegate.distribution.target_queue import TargetMessages

        queue = TargetMessages(Queue(self.sqs, self.settings.targets_queue_url))
        return Submit(
            self.job_door, self.task_store, self.content_store, queue, self._check_callback, self.clock, self.windows
        )

    def _check_callback(self, project_id: str, url: str) -> None:
        project = self.projects.get(project_id)
        self.http.check_url(url, allow_private=project.allow_private_urls)

    @cached_property
    def collect(self) -> Collect:
        from tidegate.distribution.collect import Collect

        return Collect(self.job_store, self.task_store, self.target_store, self.job_door, self.clock, self.windows)

    @cached_property
    def heartbeat(self) -> Heartbeat:
        from tidegate.distribution.recovery import Heartbeat

        return Heartbeat(self.job_store, self.clock)

    @cached_property
    def job_watch(self) -> Watch:
        from tidegate.distribution.recovery import Watch

        return Watch(self.job_store, self.job_executions, self.clock)

    @cached_property
    def close_window(self) -> CloseWindow:
        from tidegate.distribution.close import CloseWindow

        return CloseWindow(
            self.job_store,
            self.target_store,
            self.clock,
            job_timeout=self.windows.job_timeout,
            transfer_max_targets=self.settings.transfer_max_targets,
        )

    @cached_property
    def prepare_file(self) -> PrepareFile:
        from tidegate.distribution.prepare import PrepareFile

        return PrepareFile(self.content_store, self.bucket, self.engine, self.heartbeat)

    @cached_property
    def dispatch(self) -> Dispatch:
        from tidegate.distribution.dispatch import Dispatch

        return Dispatch(
            self.job_store,
            self.target_store,
            self.transfer_store,
            self.content_store,
            self.engine,
            self.heartbeat,
            self.clock,
        )

    @cached_property
    def poll_transfer(self) -> Poll:
        from tidegate.distribution.poll import Poll

        stores = (self.job_store, self.target_store, self.transfer_store)
        return Poll(*stores, self.engine, self.heartbeat, self.live.progress, self.clock)

    @cached_property
    def finish_job(self) -> Finish:
        from tidegate.distribution.finish import Finish

        stores = (self.job_store, self.task_store, self.target_store, self.transfer_store)
        return Finish(*stores, self.engine, self.notifier, self.topic, self.clock)

    @cached_property
    def download_lookup(self) -> Lookup:
        from tidegate.distribution.lookup import Lookup

        return Lookup(self.job_store, self.task_store, self.target_store)

    @cached_property
    def agents(self) -> Agents:
        from tidegate.distribution.agents import Agents

        return Agents(self.order_store, self.bucket, self.clock)

    def record_lookups(self) -> dict[str, Callable[[str, str], dict[str, Any] | None]]:
        lookup = self.download_lookup
        return super().record_lookups() | {
            "AsyncDownloadTask": _or_none(lookup.task),
            "AsyncDownloadJob": _or_none(lookup.job),
        }

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"job": self._look_at_job}

    def _look_at_job(self, item: dict[str, Any]) -> bool:
        return self.job_watch.look(item["project_id"], item["key"])


def _or_none(read: Callable[[str, str], dict[str, Any]]) -> Callable[[str, str], dict[str, Any] | None]:
    def reading(project_id: str, record_id: str) -> dict[str, Any] | None:
        try:
            return {name: value for name, value in read(project_id, record_id).items() if value is not None}
        except RecordNotFound:
            return None

    return reading
