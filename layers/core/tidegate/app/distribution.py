"""Wires distribution: Tasks, Jobs, targets, transfers and the fleet."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.aws.sfn import Machines
from tidegate.aws.sqs import SqsQueue
from tidegate.distribution.dispatch import Dispatch
from tidegate.distribution.executions import JobExecutions
from tidegate.distribution.finish import Finish
from tidegate.distribution.fleet.agents import Agents
from tidegate.distribution.fleet.hosts import Fleet
from tidegate.distribution.fleet.last_jobs import LastJobs
from tidegate.distribution.fleet.wakeups import AgentWaker, Wakeups
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
from tidegate.distribution.swarm.metrics import publish_swarm_metrics
from tidegate.distribution.swarm.planner import SwarmPlanner
from tidegate.distribution.swarm.presences import Presences
from tidegate.distribution.transfers import most_targets
from tidegate.distribution.window.close import CloseWindow
from tidegate.distribution.window.collect import Collect
from tidegate.distribution.window.job_opener import JobOpener, Windows
from tidegate.distribution.window.strays import StrayTasks
from tidegate.distribution.window.target_queue import TargetMessages
from tidegate.files.reading import TurnReader

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.distribution.control import JobControl
    from tidegate.distribution.fleet.enrolment import Enrolments
    from tidegate.distribution.ports import Engine

# Shorter than elsewhere, because submits are frequent. A name that takes longer is checked when the callback is sent.
_CALLBACK_CHECK_SECONDS = 0.2


class DistributionPart:
    def __init__(self, app: App) -> None:
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
        last_jobs = LastJobs(self.inbox, self.jobs)
        self.fleet = Fleet(
            self.fleet_store, self.inbox, last_jobs, lambda *key: app.projects.api_keys.revoke(*key), clock
        )
        self.wakeups = Wakeups(SqsQueue(app.sqs, settings.agent_wakeups_queue_url), lambda: self.waker)
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
            can_stage=settings.transfer_engine == "agent",
        )
        self.collect = Collect(self.jobs, self.tasks, self.targets, self.opener, clock, self.windows)
        self.close_window = CloseWindow(
            self.jobs,
            self.targets,
            clock,
            job_timeout=self.windows.job_timeout,
            transfer_max_targets=most_targets(settings.transfer_engine, settings.transfer_max_targets),
        )

        # With GSE, the hosts run no Tidegate agent, so they are not in the fleet.
        fleet = self.fleet_store if settings.transfer_engine == "agent" else None
        self.heartbeat = heartbeat = Heartbeat(self.jobs, clock)
        self.recovery = JobRecovery(self.jobs, self.executions, clock)
        self.prepare_file = PrepareFile(
            contents, app.files.bucket, TurnReader(app.files.bucket), self.engine, heartbeat
        )
        self.dispatch = Dispatch(self.jobs, self.targets, self.transfers, contents, self.engine, heartbeat, clock)
        self.poll_transfer = PollTransfer(
            self.jobs,
            self.targets,
            self.transfers,
            self.engine,
            heartbeat,
            app.notifications.progress.progress,
            fleet,
            clock,
            job_timeout=self.windows.job_timeout,
        )
        notifications = app.notifications
        self.finish_job = Finish(
            self.jobs,
            self.tasks,
            self.targets,
            self.transfers,
            self.engine,
            StrayTasks(self.tasks, self.targets, messages),
            notifications.notifier,
            notifications.topic,
            clock,
            publish_swarm_metrics,
        )
        self.lookup = Lookup(self.jobs, self.tasks, self.targets, fleet, clock)
        self.agents = Agents(self.inbox, app.files.bucket, self.fleet, contents, clock)

    @cached_property
    def engine(self) -> Engine:
        """What sends files to hosts: Tidegate's agents, or GSE."""
        app, settings = self._app, self._app.settings
        if settings.transfer_engine == "gse":
            from tidegate.distribution.engines.gse import gse_engine

            return gse_engine(settings, app.http, app.secretsmanager, self.inbox, self.wakeups, app.clock)
        from tidegate.distribution.engines.agent import AgentEngine

        return AgentEngine(self.inbox, self.wakeups, app.clock, self.swarm_planner)

    @cached_property
    def control(self) -> JobControl:
        from tidegate.distribution.control import JobControl

        return JobControl(self.jobs, self.targets, self.submit, self.executions, self._app.clock)

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
        return AgentWaker(self.fleet_store, self._app.notifications.outgoing, self._app.clock)

    def _check_callback(self, project_id: str, url: str) -> None:
        project = self._app.projects.projects.get(project_id)
        self._app.http.check_url(
            url,
            allow_private=project.allow_private_urls,
            project_id=project.project_id,
            seconds=_CALLBACK_CHECK_SECONDS,
        )
