"""Compensation: the poll, with the handlers of due work that the features register."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.compensation.poll import Compensator


class CompensationWiring(Base):
    @cached_property
    def compensator(self) -> Compensator:
        from tidegate.aws.sqs import Queue
        from tidegate.compensation.poll import Compensator
        from tidegate.compensation.store import CompensationRepository
        from tidegate.compensation.ticks import TickQueue

        ticks = Queue(self.sqs, self.settings.compensation_queue_url)
        admission = Queue(self.sqs, self.settings.admission_queue_url)
        store = CompensationRepository(self.table)
        return Compensator(store, TickQueue(ticks, admission), self.due_handlers(), self.clock)
