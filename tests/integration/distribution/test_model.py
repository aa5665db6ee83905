"""Submits, collectors, closers, pollers and finishers in any order, with duplicates and delays.

In any order, a Task is bound once, never lost, and ends once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support import sample
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.distribution import submit, transfer, window
from tidegate.distribution.inbox import Result
from tidegate.distribution.model import ENDED, PENDING, RUNNING, Arrival, Job, Target, TargetReport, TransferSpec
from tidegate.distribution.submit import NewTasks, TargetMessage
from tidegate.errors import RecordNotFound

ORDER = {PENDING: 0, RUNNING: 1}
agents = st.sampled_from(["a-1", "a-2", "a-3"])
picks = st.integers(0, 10_000)


class Distribution(RuleBasedStateMachine):
    """The queue is a list: a message may arrive late, twice, or long after its Job has ended."""

    cloud: MotoCloud

    @initialize()
    def begin(self) -> None:
        self.fleet = Fleet(self.cloud)
        self.fleet.to_window_start()
        self.app = self.cloud.app
        self.opened: list[str] = []
        self.app.distribution.executions.start = lambda job: self.opened.append(job.key)  # type: ignore[method-assign]
        self.project_id = self.fleet.project.id
        self.app.distribution.target_messages = self  # type: ignore[assignment]
        self.messages: list[TargetMessage] = []
        self.undelivered: set[int] = set()
        self.tasks: dict[str, str] = {}
        self.seen: dict[str, str] = {}

    def send(
        self, job: Job, arrivals: Sequence[Arrival], callback: str | None, new: NewTasks | None = None, *, at: str
    ) -> None:
        self.undelivered.add(len(self.messages))
        number = str(len(self.messages))
        self.messages.append(TargetMessage(number, job.project_id, job.job_id, arrivals, job.spec, job.sequence))

    @precondition(lambda self: len(self.tasks) < 8)
    @rule(agent=agents)
    def submit(self, agent: str) -> None:
        sent = len(self.messages)
        spec = TransferSpec(**self.fleet.body())
        submitted = submit.submit(self.app.distribution, self.project_id, spec, [Target(agent)])
        self.tasks[submitted.tasks[0].uuid] = agent
        assert len(self.messages) == sent + 1, "a submit whose queue fails would bind its targets directly"

    @precondition(lambda self: self.messages)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        number = pick % len(self.messages)
        assert window.collect(self.app.distribution, [self.messages[number]]) == []
        self.undelivered.discard(number)

    @rule(seconds=st.sampled_from([1, 5, 20]))
    def wait(self, seconds: int) -> None:
        self.cloud.clock.advance(seconds)

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        job = self.some_job(pick)
        if job.closes_at <= self.cloud.clock().isoformat():
            window.close(self.app.distribution, self.project_id, job.key)

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def dispatch(self, pick: int) -> None:
        job = self.some_job(pick)
        if job.status != PENDING:
            transfer.dispatch(self.app.distribution, self.project_id, job.key)

    @precondition(lambda self: self.tasks)
    @rule(pick=picks, agent=agents, code=st.sampled_from([0, 7, 115]))
    def report(self, pick: int, agent: str, code: int) -> None:
        transfer_id = self.some_job(pick).transfer_id
        if transfer_id:
            with suppress(RecordNotFound):
                self.app.distribution.agents.report(
                    self.project_id, agent, [Result(transfer_id, "", TargetReport(code))]
                )

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def poll(self, pick: int) -> None:
        job = self.some_job(pick)
        if job.shard_count is not None:
            transfer.poll(self.app.distribution, self.project_id, job.key)

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def finish(self, pick: int) -> None:
        transfer.finish(self.app.distribution, self.project_id, self.some_job(pick).key)

    def jobs(self) -> list[Job]:
        found = (self.app.distribution.jobs.get(self.project_id, key) for key in self.opened)
        return [job for job in found if job]

    def some_job(self, pick: int) -> Job:
        jobs = self.jobs()
        return jobs[pick % len(jobs)]

    @invariant()
    def no_state_goes_back_and_final_states_stay(self) -> None:
        for uuid in self.tasks:
            status = str(self.app.distribution.lookup.task(self.project_id, uuid)["status"])
            before = self.seen.get(uuid, PENDING)
            assert before == status or (before not in ENDED and ORDER[before] < ORDER.get(status, 2)), (before, status)
            self.seen[uuid] = status

    def teardown(self) -> None:
        """Delivers the remaining messages and runs the steps: then every Task has ended, bound to one Job."""
        for number in sorted(self.undelivered):
            assert window.collect(self.app.distribution, [self.messages[number]]) == []
        for _ in range(3):
            self.cloud.clock.advance(700)
            for job in self.jobs():
                if not job.ended:
                    window.close(self.app.distribution, self.project_id, job.key)
                    transfer.dispatch(self.app.distribution, self.project_id, job.key)
                    self.cloud.clock.advance(700)
                    assert transfer.finish(self.app.distribution, self.project_id, job.key) == "ended"
        self.no_state_goes_back_and_final_states_stay()
        assert set(self.seen.values()) <= ENDED
        self.bound_once()

    def bound_once(self) -> None:
        homes: dict[str, set[str]] = {uuid: set() for uuid in self.tasks}
        targets: dict[str, set[str]] = {}
        for job in self.jobs():
            arrivals = list(self.app.distribution.targets.collected(self.project_id, job.key))
            targets[job.job_id] = {arrival.agent_id for arrival in arrivals}
            for arrival in arrivals:
                homes[arrival.uuid].add(job.job_id)
            assert job.counts.total == len(targets[job.job_id])
        for uuid, agent in self.tasks.items():
            task = self.app.distribution.tasks.get(self.project_id, uuid)
            assert task
            assert homes[uuid] <= {task.job_id}, "bound to another Job"
            assert agent in targets[task.job_id], "its Job lacks its target"


@pytest.fixture
def model(cloud: MotoCloud) -> type[Distribution]:
    Distribution.cloud = cloud
    return Distribution


@pytest.mark.slow
def test_tasks_are_bound_once_and_end_once_in_any_order(model: type[Distribution]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=sample.count(15, 5), stateful_step_count=25, deadline=None, suppress_health_check=checks
        ),
    )
