"""Targets: the machines that receive a file, their states, and the shards in which a Job stores them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidegate.distribution.swarm.figures import NO_FIGURES, SwarmFigures

SHARD_LIMIT = 500
# Hashing fills shards unevenly: with this average the fullest stays under the limit.
_SHARD_AIM = 400
LONGEST_MESSAGE_BYTES = 200

DONE, IN_PROGRESS = 0, 115
# Codes for targets on which no provider reported.
CODE_TIMEOUT, CODE_JOB_FAILED, CODE_CANCELLED, CODE_NOT_SENT = 9001, 9002, 9003, 9004


class Target(NamedTuple):
    """`container_id` is empty for the host itself."""

    agent_id: str
    container_id: str = ""


class Figures(NamedTuple):
    """Figures of a transfer as its host reports them: bytes, bytes per second, and times by the host's clock."""

    size: int | None = None
    speed: int | None = None
    start_time: str | None = None
    end_time: str | None = None


class TargetReport(NamedTuple):
    """A provider's report on one target. `swarm`: where its bytes came from, reported when all have arrived.

    `staged_at`: since when the whole file is on the host and waits for the Job's `activate_at`."""

    code: int
    message: str = ""
    progress: int | None = None
    figures: Figures | None = None
    swarm: SwarmFigures | None = None
    staged_at: str | None = None


class TargetState(NamedTuple):
    """`code` is None until the first report. Only the codes None and 115 can still change."""

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
        """The state after a report. A final state does not change."""
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
    """A target's rank in the order of waves: pseudo-random, and the same in every Job."""
    hashed = hashlib.blake2b("\0".join(target).encode(), digest_size=6, person=b"wave").digest()
    return int.from_bytes(hashed)


def spread(targets: Iterable[Target]) -> list[list[Target]]:
    """The distinct targets, in shards of at most 500. The same targets always give the same shards."""
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
    """`rev` counts changes, so that one of two pollers wins. `sequences` has those that differ from the Job's."""

    number: int
    states: Mapping[Target, TargetState]
    rev: int = 0
    update_time: str = ""
    sequences: Mapping[Target, int] = field(default_factory=dict)
    # The sum over its targets that have ended or are staged.
    swarm: SwarmFigures = NO_FIGURES

    def after(self, reports: Mapping[Target, TargetReport]) -> Shard:
        """The shard after these reports; the same object if nothing changed."""
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
            # A staged host was counted when it was staged; at its end it reports the same figures again.
            is_first = (state.ended or state.staged_at) and not self.states[target].staged_at
            if is_first and (figures := reports[target].swarm) is not None:
                swarm += figures
        return replace(self, states={**self.states, **changed}, swarm=swarm)

    def after_all(self, report: TargetReport, chosen: Callable[[Target], bool] = lambda _: True) -> Shard:
        """The shard after one report for all chosen targets."""
        return self.after({target: report for target in self.states if chosen(target)})

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
        """Figures of the successful transfers whose hosts reported their speed."""
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
