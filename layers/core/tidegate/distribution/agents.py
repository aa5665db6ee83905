"""The agents' side: what one has to fetch, and what it says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso
from tidegate.distribution.agent_inbox import InboxEntry
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.targets import IN_PROGRESS, Target, TargetReport
from tidegate.errors import RecordNotFound
from tidegate.files.contents import ContentStore
from tidegate.files.model import content_disposition

# A link is made anew for every answer, so one that an agent holds is renewed long before it expires.
LINK_SECONDS = 900
_LOOK_EVERY = 1.0
_OFFERED_TOGETHER = 100
# Progress is for people: smaller steps are not worth a write.
_PROGRESS_STEP = 10


@dataclass(frozen=True, slots=True)
class OfferedTransfer:
    order: InboxEntry
    url: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class Result:
    transfer_id: str
    container_id: str
    report: TargetReport


class Agents:
    def __init__(
        self,
        orders: AgentInboxStore,
        objects: Bucket,
        contents: ContentStore,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._orders = orders
        self._objects = objects
        self._contents = contents
        self._clock = clock
        self._sleep = sleep

    def inbox(self, project_id: str, agent_id: str, wait: int = 0) -> list[OfferedTransfer]:
        """Answers at once if there is something, else looks again until `wait` seconds have passed."""
        looks = 1 + int(wait / _LOOK_EVERY)
        for look in range(looks):
            if look:
                self._sleep(_LOOK_EVERY)
            now = self._clock().timestamp()
            orders = [order for order in self._orders.inbox(project_id, agent_id) if order.until > now]
            if orders:
                offered = orders[:_OFFERED_TOGETHER]
                objects = self._contents.objects_of(project_id, (order.signature for order in offered))
                return [self._offer(order, objects[order.signature]) for order in offered]
        return []

    def _offer(self, order: InboxEntry, key: str) -> OfferedTransfer:
        url = self._objects.presign_get(key, LINK_SECONDS, disposition=content_disposition(order.file_name))
        return OfferedTransfer(order, url, iso(self._clock() + timedelta(seconds=LINK_SECONDS)))

    def report(self, project_id: str, agent_id: str, results: Sequence[Result]) -> None:
        """All of them or none: a transfer that is not this agent's own is refused before anything is written."""
        named = [(result.transfer_id, Target(agent_id, result.container_id)) for result in results]
        orders = self._orders.read(project_id, named)
        if any(name not in orders for name in named):
            raise RecordNotFound("no such transfer of this agent")
        for name, result in zip(named, results, strict=True):
            if _is_news(orders[name], result.report):
                self._orders.report(orders[name], result.report)


def _is_news(order: InboxEntry, report: TargetReport) -> bool:
    before = order.state
    if before.ended:
        return False
    if report.code != IN_PROGRESS or before.code is None:
        return True
    return (report.progress or 0) - (before.progress or 0) >= _PROGRESS_STEP
