"""Channels for operators: capacity, pause and resume, and how many requests wait for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tidegate.common.ids import Clock
from tidegate.errors import Invalid
from tidegate.projects.audit import NO_PROJECT, SYSTEM, act
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.channels.model import ALL, Channel
from tidegate.queue.channels.store import ChannelStore


@dataclass(frozen=True, slots=True)
class ChannelStats:
    channel: str
    capacity: int
    running: int
    queued: int
    paused: bool
    oldest_wait_s: float


class Channels:
    def __init__(
        self, store: ChannelStore, admission_queue: AdmissionQueue, clock: Clock, capacities: Mapping[str, int]
    ) -> None:
        self._store = store
        self._admission_queue = admission_queue
        self._clock = clock
        self._capacities = capacities
        self._known: set[str] = set(capacities)

    def all(self) -> list[Channel]:
        """Channels that were used or set, and those of the configuration, by name."""
        stored = {channel.name: channel for channel in self._store.all()}
        configured = {name: Channel(name, capacity) for name, capacity in self._capacities.items()}
        return [found for _, found in sorted({**configured, **stored}.items())]

    def stats(self) -> list[ChannelStats]:
        return [self._stats_of(channel) for channel in self.all()]

    def _stats_of(self, channel: Channel) -> ChannelStats:
        queued, since = self._store.queue_of(channel.name)
        waited = (self._clock() - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        return ChannelStats(
            channel.name, channel.capacity, channel.running, queued, channel.paused, round(max(0.0, waited), 3)
        )

    def require(self, name: str) -> None:
        """Raises Invalid if there is no such channel. Known names are cached, because channels are never removed."""
        if name not in self._known:
            self._known |= {channel.name for channel in self.all()}
        if name not in self._known:
            raise _unknown(name, "channel")

    def set_capacities(self, capacities: Mapping[str, int], who: str = SYSTEM) -> list[Channel]:
        """Acts at once: with more capacity, requests are admitted now; with less, running ones finish first.

        A new name creates a channel.
        """
        for name, capacity in capacities.items():
            self._store.ensure(name, capacity)
            now = self._clock()
            line = act(NO_PROJECT, name, now, who, "queue.capacity", str(capacity))
            self._store.set_capacity(name, capacity, now.timestamp(), line)
        self._admission_queue.trigger(*capacities)
        return self.all()

    def set_paused(self, scope: str, paused: bool, who: str = SYSTEM) -> list[Channel]:
        names = [channel.name for channel in self.all() if scope in (ALL, channel.name)]
        if not names:
            raise _unknown(scope, "scope")
        for name in names:
            self._store.ensure(name, self._capacities.get(name, 1))
            now = self._clock()
            line = act(NO_PROJECT, name, now, who, "queue.pause" if paused else "queue.resume")
            self._store.set_paused(name, paused, now.timestamp(), line)
        self._admission_queue.trigger(*names)
        return self.all()


def _unknown(name: str, field: str) -> Invalid:
    return Invalid(
        f"there is no channel {name}: GET /v1/queue/stats lists the channels",
        errors=[{"loc": ["body", field], "msg": "unknown channel"}],
    )
