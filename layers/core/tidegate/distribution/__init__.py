"""Distribution sends files to hosts. Each step is a function that takes the `Distribution` object of `app.py`.

Importing any module of this package runs this file, so this file imports other modules only at their first use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sqs import SQSClient

    from tidegate.aws.clients import Machines, SqsQueue
    from tidegate.aws.s3 import UploadBucket
    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.compensation.freeze import Freeze
    from tidegate.distribution.fleet import Enrolments, Fleet, FleetStore
    from tidegate.distribution.inbox import AgentInboxStore, Agents
    from tidegate.distribution.lookup import Lookup
    from tidegate.distribution.model import Engine, Job, Windows
    from tidegate.distribution.store import JobStore, TargetStore, TaskStore, TransferStore
    from tidegate.distribution.submit import JobExecutions, TargetMessages
    from tidegate.distribution.swarm import JobSwarm, Presences, PresenceStore, SwarmSettingsStore
    from tidegate.files.library import ContentStore
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.notices import Notifier, Topic
    from tidegate.notifications.websocket import WebSocketSender
    from tidegate.projects.keys import ApiKeys
    from tidegate.projects.limits import UsageStore
    from tidegate.projects.model import Quotas
    from tidegate.projects.projects import Projects, ProjectStore
    from tidegate.settings import Settings

K = TypeVar("K")
V = TypeVar("V")
REMEMBERED = 2000


class Remembered(OrderedDict[K, V]):
    """A dict for caching. Drops its oldest entry when it has more than 2,000 entries."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


@dataclass(eq=False, repr=False, kw_only=True)
class Distribution:
    """The settings, clients and stores that the steps of distribution use. Stores are made at their first use."""

    settings: Settings
    clock: Clock
    table: Table
    sqs: SQSClient
    machines: Machines
    freeze: Freeze
    secretsmanager: SecretsManagerClient
    http: SafeHttp

    # --- parts of other capabilities
    bucket: UploadBucket
    contents: ContentStore
    projects: Projects
    project_store: ProjectStore
    usage: UsageStore
    # Made at its first use, because it needs the WebSocket sender.
    api_keys: Callable[[], ApiKeys]
    notifier: Notifier
    topic: Topic
    outgoing: WebSocketSender

    # --- what this process remembers between invocations
    # By project, digest of what is delivered, and window.
    known_jobs: Remembered[tuple[str, str, int], Job] = field(default_factory=Remembered)
    # By project and signature: until when the file is protected against deletion.
    known_contents: Remembered[tuple[str, str], float] = field(default_factory=Remembered)
    # By project: (valid until, quotas, counts of the day).
    known_quotas: Remembered[str, tuple[float, Quotas, dict[str, int]]] = field(default_factory=Remembered)
    # By project and day: targets that are not counted in the table yet.
    uncounted_targets: dict[tuple[str, str], int] = field(default_factory=dict)
    # The swarm of the last Job, because a Job's transfers are created one after another. Projects may share Job ids.
    last_swarm: tuple[tuple[str, str], JobSwarm] | None = None

    # --- settings as the steps need them

    @cached_property
    def windows(self) -> Windows:
        from tidegate.distribution.model import Windows

        settings = self.settings
        return Windows(
            settings.collect_window_seconds,
            settings.collect_grace_seconds,
            settings.job_timeout_seconds,
            settings.record_ttl_seconds,
        )

    @property
    def uses_agents(self) -> bool:
        """Whether hosts run Tidegate's agent, and not GSE's.

        GSE's hosts are not in the fleet, cannot hold a file until `activate_at`, and have no `--allow-dir` and
        `--allow-user`, so projects need a grant."""
        return self.settings.transfer_engine == "agent"

    @cached_property
    def transfer_max_targets(self) -> int:
        from tidegate.distribution.model import most_targets

        return most_targets(self.settings.transfer_engine, self.settings.transfer_max_targets)

    # --- stores

    @cached_property
    def jobs(self) -> JobStore:
        from tidegate.distribution.store import JobStore

        return JobStore(self.table, ttl=self.windows.ttl, lasts=self.windows.lasts)

    @cached_property
    def tasks(self) -> TaskStore:
        from tidegate.distribution.store import TaskStore

        return TaskStore(self.table)

    @cached_property
    def targets(self) -> TargetStore:
        from tidegate.distribution.store import TargetStore

        return TargetStore(self.table, lasts=self.windows.longest)

    @cached_property
    def transfers(self) -> TransferStore:
        from tidegate.distribution.store import TransferStore

        return TransferStore(self.table, lasts=self.windows.longest)

    @cached_property
    def inbox(self) -> AgentInboxStore:
        from tidegate.distribution.inbox import AgentInboxStore

        return AgentInboxStore(self.table, ttl=self.windows.ttl)

    @cached_property
    def fleet_store(self) -> FleetStore:
        from tidegate.distribution.fleet import FleetStore

        return FleetStore(self.table)

    @cached_property
    def presence_store(self) -> PresenceStore:
        from tidegate.distribution.swarm import PresenceStore

        return PresenceStore(self.table)

    @cached_property
    def swarm_settings(self) -> SwarmSettingsStore:
        from tidegate.distribution.swarm import SwarmSettingsStore

        return SwarmSettingsStore(self.table)

    # --- queues, executions, engines

    @cached_property
    def target_messages(self) -> TargetMessages:
        from tidegate.aws.clients import SqsQueue
        from tidegate.distribution.submit import TargetMessages

        return TargetMessages(SqsQueue(self.sqs, self.settings.targets_queue_url))

    @cached_property
    def wakeups_queue(self) -> SqsQueue:
        from tidegate.aws.clients import SqsQueue

        return SqsQueue(self.sqs, self.settings.agent_wakeups_queue_url)

    @cached_property
    def executions(self) -> JobExecutions:
        from tidegate.distribution.submit import JobExecutions

        arn, windows = self.settings.download_job_machine_arn, self.windows
        return JobExecutions(self.machines, self.freeze, arn, grace=windows.grace, job_timeout=windows.job_timeout)

    @cached_property
    def engine(self) -> Engine:
        """The transfer engine: Tidegate's agents, or GSE."""
        if not self.uses_agents:
            from tidegate.distribution.gse import gse_engine

            return gse_engine(self)
        from tidegate.distribution.agent_engine import AgentEngine

        return AgentEngine(self)

    # --- hosts

    @cached_property
    def fleet(self) -> Fleet:
        from tidegate.distribution.fleet import Fleet

        return Fleet(self)

    @cached_property
    def enrolments(self) -> Enrolments:
        from tidegate.distribution.fleet import Enrolments, EnrolmentStore

        store = EnrolmentStore(self.table)
        return Enrolments(store, self.fleet_store, self.api_keys, self.projects, self.clock, self.http)

    @cached_property
    def presences(self) -> Presences:
        from tidegate.distribution.swarm import Presences

        return Presences(self.presence_store, self.swarm_settings, self.clock)

    # --- what callers read, and the agents' API

    @cached_property
    def lookup(self) -> Lookup:
        from tidegate.distribution.lookup import Lookup

        return Lookup(self.jobs, self.tasks, self.targets, self.fleet_store if self.uses_agents else None, self.clock)

    @cached_property
    def agents(self) -> Agents:
        from tidegate.distribution.inbox import Agents

        return Agents(self.inbox, self.bucket, self.fleet, self.contents, self.jobs, self.targets, self.clock)
