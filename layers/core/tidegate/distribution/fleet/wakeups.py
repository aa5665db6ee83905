"""Tells connected agents that their inbox has something. A host that misses it finds out by its own slow poll."""

from __future__ import annotations

import json
from collections.abc import Iterable

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
# Hosts of one Job ask for their URLs, and report, at this rate together: some thirty functions at work at once.
HOSTS_A_SECOND = 500
LONGEST_SPREAD = 120


def spread_seconds(targets: int) -> int:
    """Over how many seconds the hosts of a Job of this size spread what they ask and report."""
    return min(LONGEST_SPREAD, targets // HOSTS_A_SECOND)


def wakeup(within_s: int) -> str:
    said = {"type": "transfers"} | ({"within_s": within_s} if within_s else {})
    return json.dumps(said, separators=(",", ":"))


class Wakeups:
    """What a dispatch leaves in the queue: few calls, however many hosts."""

    def __init__(self, queue: SqsQueue) -> None:
        self._queue = queue

    def send(self, project_id: str, agent_ids: Iterable[str], within_s: int) -> None:
        """Never fails a dispatch: hosts that are not told ask by themselves a little later."""
        distinct = list(dict.fromkeys(agent_ids))
        messages = (
            Message({"project_id": project_id, "agents": list(some), "within_s": within_s})
            for some in slices(distinct, _AGENTS_A_MESSAGE)
        )
        try:
            self._queue.send(*messages)
        except (ClientError, BotoCoreError, DomainError):
            logger.exception("hosts were not told of their transfers", project_id=project_id, hosts=len(distinct))


class AgentWaker:
    """Takes from the queue: one read for a hundred hosts, then a message to each that is connected, side by side."""

    def __init__(self, fleet: FleetStore, outgoing: WebSocketSender, clock: Clock) -> None:
        self._fleet = fleet
        self._outgoing = outgoing
        self._clock = clock

    def wake(self, project_id: str, agent_ids: Iterable[str], within_s: int) -> int:
        """Answers how many were told."""
        found = self._fleet.get_many(project_id, agent_ids).values()
        connected = {agent.connection_id: agent.agent_id for agent in found if agent.connection_id}
        text = wakeup(within_s)
        gone = self._outgoing.send([(connection_id, text) for connection_id in connected])
        for connection_id in gone:
            self._fleet.disconnected(project_id, connected[connection_id], connection_id, self._clock())
        return len(connected) - len(gone)
