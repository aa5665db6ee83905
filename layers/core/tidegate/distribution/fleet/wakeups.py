"""Wakes connected agents when their inbox has entries. Polls repeat this for hosts that do not start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.common.ids import Clock
from tidegate.common.slices import slices
from tidegate.distribution.store.fleet import FleetStore
from tidegate.errors import DomainError
from tidegate.notifications.websocket_sender import WebSocketSender

logger = Logger(service="tidegate", child=True)
_AGENTS_A_MESSAGE = 100
# The rate at which all hosts of a Job together request URLs and report: about thirty concurrent functions.
HOSTS_A_SECOND = 500
LONGEST_SPREAD = 120
# A host that has not started by then may have missed its wake-up, which is sent again at doubling intervals.
FIRST_REPEAT = 15.0


def spread_seconds(targets: int) -> int:
    """The seconds over which the hosts of a Job of this size spread their requests and reports."""
    return min(LONGEST_SPREAD, targets // HOSTS_A_SECOND)


def is_time_to_repeat(age: float, since_last_poll: float, spread: int) -> bool:
    """Whether a wake-up fell due since the last poll: 15, 30, 60 … seconds after the hosts should have started."""
    now, before = age - spread, age - spread - since_last_poll
    moment = FIRST_REPEAT
    while moment <= now:
        if moment > before:
            return True
        moment *= 2
    return False


def wakeup(within_s: int) -> str:
    message = {"type": "transfers"} | ({"within_s": within_s} if within_s else {})
    return json.dumps(message, separators=(",", ":"))


class Wakeups:
    """Wakes hosts: the first hundred directly, the others by messages for wake_agents."""

    def __init__(self, queue: SqsQueue, waker: Callable[[], AgentWaker]) -> None:
        self._queue = queue
        self._waker = waker

    def send(self, project_id: str, agent_ids: Iterable[str], within_s: int, *, directly: bool = False) -> None:
        """Wakes these agents. Never raises: polls repeat lost wake-ups.

        `directly` wakes the first hundred from here; the queue and a cold function would take half a second longer.
        """
        distinct = list(dict.fromkeys(agent_ids))
        first = distinct[:_AGENTS_A_MESSAGE] if directly else []
        self._enqueue(project_id, distinct[len(first) :], within_s)
        if not first:
            return
        try:
            self._waker().wake(project_id, first, within_s)
        except (ClientError, BotoCoreError, DomainError, OSError):
            logger.exception("agents were not woken directly: the queue is used", project_id=project_id)
            self._enqueue(project_id, first, within_s)

    def _enqueue(self, project_id: str, agent_ids: list[str], within_s: int) -> None:
        messages = [
            Message({"project_id": project_id, "agents": list(some), "within_s": within_s})
            for some in slices(agent_ids, _AGENTS_A_MESSAGE)
        ]
        if not messages:
            return
        try:
            self._queue.send(*messages)
        except (ClientError, BotoCoreError, DomainError):
            logger.exception("agents were not woken", project_id=project_id, hosts=len(agent_ids))


class AgentWaker:
    """Sends wake-ups: one read for a hundred hosts, then messages to the connected ones in parallel."""

    def __init__(self, fleet: FleetStore, outgoing: WebSocketSender, clock: Clock) -> None:
        self._fleet = fleet
        self._outgoing = outgoing
        self._clock = clock

    def wake(self, project_id: str, agent_ids: Iterable[str], within_s: int) -> int:
        """Returns how many agents were sent a message."""
        found = self._fleet.get_many(project_id, agent_ids).values()
        connected = {agent.connection_id: agent for agent in found if agent.connection_id}
        text, now = wakeup(within_s), self._clock()
        gone = self._outgoing.send([(connection_id, text) for connection_id in connected]).gone
        for connection_id in gone:
            # A host that is just connecting is woken again by a poll of its Job.
            if not connected[connection_id].may_be_opening(now):
                self._fleet.disconnected(project_id, connected[connection_id].agent_id, connection_id, now)
        return len(connected) - len(gone)
