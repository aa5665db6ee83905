"""Targets: the machines that receive a file, their states, and the shards that a Job keeps them in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidegate.distribution.swarm.figures import NO_FIGURES, SwarmFigures

SHARD_LIMIT = 500
# Hashing fills shards unevenly: aiming at this many keeps the fullest under the limit.
_SHARD_AIM = 400
LONGEST_MESSAGE_BYTES = 200

DONE, IN_PROGRESS = 0, 115
# What this system says of a target that no provider reported on.
CODE_TIMEOUT, CODE_JOB_FAILED, CODE_CANCELLED, CODE_NOT_SENT = 9001, 9002, 9003, 9004


class Target(NamedTuple):
    """`container_id` is empty for the host itself."""

    agent_id: str
    container_id: str = ""


class Figures(NamedTuple):
    """How a target's transfer went, as its host tells: bytes, bytes a second, and times by its own clock."""

    size: int | None = None
    speed: int | None = None
    start_time: str | None = None
    end_time: str | None = None


class TargetReport(NamedTuple):
    """What a provider says of one target. `swarm`: where its bytes came from, told once all are there.

    `staged_at`: the whole file is on the host since then, and waits for the Job's `activate_at`."""

    code: int
    message: str = ""
    progress: int | None = None
    figures: Figures | None = None
    swarm: SwarmFigures | None = None
    staged_at: str | None = None


class TargetState(NamedTuple):
    """`code` is None until the first report; 115 and None are the only ones after which another may count."""

    code: int | None = None
    message: str = ""
    progress: int | None = None
    figures: Figures | None = None
    staged_at: str | None = None

    @property
    def ended(self) -> bool:
        return self.code is not None and self.code != IN_PROGRESS

    @property
    def succeeded(self) -> bool:
        return self.code == DONE

    def after(self, report: TargetReport) -> TargetState:
        """What has ended stays as it is."""
        if self.ended:
            return self
        progress = 100 if report.code == DONE else report.progress
        figures, staged_at = report.figures or self.figures, self.staged_at or report.staged_at
        return TargetState(report.code, cut(report.message), progress, figures, staged_at)


UNREPORTED = TargetState()


def cut(message: str) -> str:
    return message.encode()[:LONGEST_MESSAGE_BYTES].decode(errors="ignore")


def shard_of(target: Target, shard_count: int) -> int:
    hashed = hashlib.blake2b("\0".join(target).encode(), digest_size=8).digest()
    return int.from_bytes(hashed) % shard_count


def wave_rank(target: Target) -> int:
    """A target's place in the order of waves: pseudo-random, and the same for every Job."""
    hashed = hashlib.blake2b("\0".join(target).encode(), digest_size=6, person=b"wave").digest()
    return int.from_bytes(hashed)


def spread(targets: Iterable[Target]) -> list[list[Target]]:
    """Each target once, in shards of at most 500. The same targets give the same shards."""
    distinct = sorted(set(targets))
    if not distinct:
        return []
    count = 1 if len(distinct) <= SHARD_LIMIT else math.ceil(len(distinct) / _SHARD_AIM)
    while True:
        shards: list[list[Target]] = [[] for _ in range(count)]
        for target in distinct:
            shards[shard_of(target, count)].append(target)
        if max(map(len, shards)) <= SHARD_LIMIT:
            return shards
        count += 1


@dataclass(frozen=True, slots=True)
class Shard:
    """`rev` counts its changes, so that of two pollers one wins. `sequences` has those that differ from the Job's."""

    number: int
    states: Mapping[Target, TargetState]
    rev: int = 0
    update_time: str = ""
    sequences: Mapping[Target, int] = field(default_factory=dict)
    # Of its targets that have ended or are staged.
    swarm: SwarmFigures = NO_FIGURES

    def after(self, reports: Mapping[Target, TargetReport]) -> Shard:
        """The same object if nothing changed."""
        moved = {
            target: state.after(reports[target])
            for target, state in self.states.items()
            if target in reports and not state.ended
        }
        changed = {target: state for target, state in moved.items() if state != self.states[target]}
        if not changed:
            return self
        swarm = self.swarm
        for target, state in changed.items():
            # A host that was staged has been counted: it tells the same figures again at the end.
            has_all = (state.ended or state.staged_at) and not self.states[target].staged_at
            if has_all and (figures := reports[target].swarm) is not None:
                swarm += figures
        return replace(self, states={**self.states, **changed}, swarm=swarm)

    def all_failed(self, report: TargetReport) -> Shard:
        return self.after(dict.fromkeys(self.states, report))

    def only(self, chosen: Callable[[Target], bool]) -> Shard:
        return replace(self, states={target: state for target, state in self.states.items() if chosen(target)})

    @property
    def begun(self) -> int:
        return sum(state.code == IN_PROGRESS for state in self.states.values())

    @property
    def staged(self) -> int:
        return sum(state.code == IN_PROGRESS and state.staged_at is not None for state in self.states.values())

    @property
    def figures(self) -> list[Figures]:
        """Of the successful transfers whose hosts reported their speed."""
        return [s.figures for s in self.states.values() if s.succeeded and s.figures and s.figures.speed is not None]

    @property
    def success(self) -> int:
        return sum(state.succeeded for state in self.states.values())

    @property
    def failed(self) -> int:
        return sum(state.ended and not state.succeeded for state in self.states.values())

    @property
    def unfinished(self) -> list[Target]:
        return [target for target, state in self.states.items() if not state.ended]
