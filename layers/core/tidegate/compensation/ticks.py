"""Ticks: SQS messages, delayed by the current interval, that each start one poll."""

from __future__ import annotations

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.compensation.interval import PollState


class TickQueue:
    def __init__(self, ticks: SqsQueue, start_queue: SqsQueue) -> None:
        self._ticks = ticks
        self._start_queue = start_queue

    def send(self, poll: PollState, delay_seconds: int) -> None:
        self._ticks.send(Message(poll.as_data(), delay_seconds=delay_seconds))

    def start_queue_size(self) -> int:
        return self._start_queue.size()
