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
    from tidegate.adapters.download_executions import JobExecutions
    from tidegate.adapters.dynamo.contents import ContentRepository
    from tidegate.adapters.dynamo.jobs import JobRepository
    from tidegate.adapters.dynamo.orders import OrderRepository
    from tidegate.adapters.dynamo.presences import PresenceRepository, SwarmSettingsRepository
    from tidegate.adapters.dynamo.targets import TargetRepository
    from tidegate.adapters.dynamo.tasks import TaskRepository
    from tidegate.adapters.dynamo.transfers import TransferRepository
    from tidegate.services.agents import Agents
    from tidegate.services.compensate import DueHandler
    from tidegate.services.download_close import CloseWindow
    from tidegate.services.download_collect import Collect
    from tidegate.services.download_dispatch import Dispatch
    from tidegate.services.download_door import JobDoor, Windows
    from tidegate.services.download_finish import Finish
    from tidegate.services.download_lookup import Lookup
    from tidegate.services.download_poll import Poll
    from tidegate.services.download_ports import Engine
    from tidegate.services.download_prepare import PrepareFile
    from tidegate.services.download_submit import Submit
    from tidegate.services.download_watch import Heartbeat, Watch
    from tidegate.services.presences import Presences
    from tidegate.services.swarm_planner import SwarmPlanner


class DistributionWiring(LibraryWiring, NotificationsWiring, OutboundWiring):
    @cached_property
    def windows(self) -> Windows:
        from tidegate.services.download_door import Windows

        given = self.settings
        return Windows(
            given.collect_window_seconds,
            given.collect_grace_seconds,
            given.job_timeout_seconds,
            given.record_ttl_seconds,
        )

    @cached_property
    def job_store(self) -> JobRepository:
        from tidegate.adapters.dynamo.jobs import JobRepository

        return JobRepository(self.table, ttl=self.windows.ttl, lasts=self.windows.lasts)

    @cached_property
    def task_store(self) -> TaskRepository:
        from tidegate.adapters.dynamo.tasks import TaskRepository

        return TaskRepository(self.table)

    @cached_property
    def target_store(self) -> TargetRepository:
        from tidegate.adapters.dynamo.targets import TargetRepository

        return TargetRepository(self.table, lasts=self.windows.longest)

    @cached_property
    def transfer_store(self) -> TransferRepository:
        from tidegate.adapters.dynamo.transfers import TransferRepository

        return TransferRepository(self.table, lasts=self.windows.longest)

    @cached_property
    def order_store(self) -> OrderRepository:
        from tidegate.adapters.dynamo.orders import OrderRepository

        return OrderRepository(self.table, ttl=self.windows.ttl)

    @cached_property
    def content_store(self) -> ContentRepository:
        from tidegate.adapters.dynamo.contents import ContentRepository

        return ContentRepository(self.table)

    @cached_property
    def job_executions(self) -> JobExecutions:
        from tidegate.adapters.download_executions import JobExecutions
        from tidegate.adapters.sfn import Machines

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
        from tidegate.adapters.transfer.agent import AgentEngine

        return AgentEngine(self.order_store, self.clock, self.swarm_planner)

    @cached_property
    def presence_store(self) -> PresenceRepository:
        from tidegate.adapters.dynamo.presences import PresenceRepository

        return PresenceRepository(self.table)

    @cached_property
    def swarm_settings(self) -> SwarmSettingsRepository:
        from tidegate.adapters.dynamo.presences import SwarmSettingsRepository

        return SwarmSettingsRepository(self.table)

    @cached_property
    def presences(self) -> Presences:
        from tidegate.services.presences import Presences

        return Presences(self.presence_store, self.swarm_settings, self.clock)

    @cached_property
    def swarm_planner(self) -> SwarmPlanner:
        from tidegate.services.swarm_planner import SwarmPlanner

        return SwarmPlanner(self.target_store, self.content_store, self.presence_store, self.swarm_settings, self.clock)

    def _gse(self) -> Engine:
        from tidegate.adapters.transfer.gse import GseConfig, GseEngine
        from tidegate.domain.targets import Target

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
        from tidegate.services.download_door import JobDoor

        return JobDoor(self.job_store, self.job_executions, self.clock, self.windows)

    @cached_property
    def submit(self) -> Submit:
        from tidegate.adapters.sqs import Queue
        from tidegate.adapters.target_queue import TargetMessages
        from tidegate.services.download_submit import Submit

        queue = TargetMessages(Queue(self.sqs, self.settings.targets_queue_url))
        return Submit(
            self.job_door, self.task_store, self.content_store, queue, self._check_callback, self.clock, self.windows
        )

    def _check_callback(self, project_id: str, url: str) -> None:
        project = self.projects.get(project_id)
        self.http.check_url(url, allow_private=project.allow_private_urls)

    @cached_property
    def collect(self) -> Collect:
        from tidegate.services.download_collect import Collect

        return Collect(self.job_store, self.task_store, self.target_store, self.job_door, self.clock, self.windows)

    @cached_property
    def heartbeat(self) -> Heartbeat:
        from tidegate.services.download_watch import Heartbeat

        return Heartbeat(self.job_store, self.clock)

    @cached_property
    def job_watch(self) -> Watch:
        from tidegate.services.download_watch import Watch

        return Watch(self.job_store, self.job_executions, self.clock)

    @cached_property
    def close_window(self) -> CloseWindow:
        from tidegate.services.download_close import CloseWindow

        return CloseWindow(
            self.job_store,
            self.target_store,
            self.clock,
            job_timeout=self.windows.job_timeout,
            transfer_max_targets=self.settings.transfer_max_targets,
        )

    @cached_property
    def prepare_file(self) -> PrepareFile:
        from tidegate.services.download_prepare import PrepareFile

        return PrepareFile(self.content_store, self.bucket, self.engine, self.heartbeat)

    @cached_property
    def dispatch(self) -> Dispatch:
        from tidegate.services.download_dispatch import Dispatch

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
        from tidegate.services.download_poll import Poll

        stores = (self.job_store, self.target_store, self.transfer_store)
        return Poll(*stores, self.engine, self.heartbeat, self.live.progress, self.clock)

    @cached_property
    def finish_job(self) -> Finish:
        from tidegate.adapters.swarm_metrics import tell_swarm
        from tidegate.services.download_finish import Finish

        stores = (self.job_store, self.task_store, self.target_store, self.transfer_store)
        return Finish(*stores, self.engine, self.notifier, self.topic, self.clock, tell_swarm)

    @cached_property
    def download_lookup(self) -> Lookup:
        from tidegate.services.download_lookup import Lookup

        return Lookup(self.job_store, self.task_store, self.target_store)

    @cached_property
    def agents(self) -> Agents:
        from tidegate.services.agents import Agents

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
