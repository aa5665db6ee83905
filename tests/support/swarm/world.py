"""A swarm in simulated time: the plan and the decisions are the product's; lines, hosts and failures are simulated."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.distribution.swarm import Member, plan
from tidegate_client.swarm.chooser import ORIGIN, Chooser, Failure, Link, Neighbour, Ranks, Rules, Step
from tidegate_client.swarm.wire import Layout

MIB = 1 << 20
NEWS, TICK, STALL, SLOT = 0.1, 0.1, 3.0, 0.5
UPLOADS = 4


@dataclass
class HostPlan:
    """How a host behaves. Times in seconds; at each of `restarts` it is killed and starts again with its pieces."""

    starts: float = 0.0
    listens: bool = True
    blocked: bool = False
    dead: bool = False
    garbage: bool = False
    stalls: bool = False
    resets: bool = False
    # The machine runs but its agent does not, so connections are refused.
    absent: bool = False
    # Announces for ever that it is fetching every piece from S3.
    pretends: bool = False
    slow: float = 1.0
    zone: str = ""
    restarts: Sequence[float] = ()
    # The share of the file that it finds in an older version, in whole pieces and in parts of pieces.
    kept: float = 0.0

    @property
    def honest(self) -> bool:
        return not (self.dead or self.garbage or self.stalls or self.resets or self.absent or self.pretends)


@dataclass
class Host:
    name: str
    plan: HostPlan
    chooser: Chooser
    peers: list[str]
    alive: bool = False
    have: int = 0
    # Pieces that it announces: those that it has, and those that it is fetching from S3.
    announces: tuple[int, int] = (0, 0)
    uploads: int = 0
    finished: float | None = None
    life: int = 0
    bad: int = 0


@dataclass
class World:
    pieces: int
    plans: list[HostPlan]
    seed: int
    store_down: Sequence[tuple[float, float]] = ()
    lasts: float = 600.0
    piece_seconds: float = 0.2
    now: float = 0.0
    origin_pieces: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)
    _heap: list[tuple[float, int, str, tuple[object, ...]]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.layout = Layout(self.pieces * MIB, MIB)
        names = [f"host-{n:03d}" for n in range(len(self.plans))]
        members = [
            Member(name, "dc1", p.zone, (f"{name}:1",) if p.listens else (), name)
            for name, p in zip(names, self.plans, strict=True)
        ]
        seats = plan(members, "job", self.rng.randbytes(32))
        for name, behaviour in zip(names, self.plans, strict=True):
            if name in seats:
                seat = seats[name]
                peers = [neighbour.agent_id for neighbour in seat.neighbours]
                ranking = Ranks(seat.number, seat.members, seat.seed, self.pieces)
                rules = Rules(seat.ranks, 0.5, 5.0, None, self.lasts)
                chooser = Chooser(
                    self.layout,
                    ranking,
                    rules,
                    [Neighbour() for _ in peers],
                    behaviour.starts,
                    rng=random.Random(self.rng.random()),
                )
                self.hosts[name] = Host(name, behaviour, chooser, peers)

    def run(self, limit: float) -> None:
        for host in self.hosts.values():
            if not host.plan.dead and not host.plan.absent:
                self._at(host.plan.starts, "start", host.name)
                for moment in host.plan.restarts:
                    self._at(host.plan.starts + moment, "restart", host.name)
        while self._heap and not self.done():
            self.now, _, kind, given = heapq.heappop(self._heap)
            if self.now > limit:
                return
            getattr(self, f"_{kind}")(*given)

    def done(self) -> bool:
        return all(host.finished is not None for host in self.hosts.values() if host.plan.honest)

    @property
    def unfinished(self) -> list[str]:
        return [host.name for host in self.hosts.values() if host.plan.honest and host.finished is None]

    def _at(self, when: float, kind: str, *given: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, kind, given))

    # --- events

    def _start(self, name: str) -> None:
        host = self.hosts[name]
        host.alive = True
        if host.plan.kept:
            self._reuse(host)
        host.chooser.begin(host.have, self.now)
        if not host.plan.honest:
            everything = self.layout.everything
            host.announces = (0, everything) if host.plan.pretends else (everything, 0)
            return
        if host.chooser.complete:
            host.finished, host.announces = self.now, (host.have, 0)
            return
        for place in range(len(host.peers)):
            self._at(self.now + 0.01, "dial", name, host.life, place)
        self._at(self.now, "tick", name, host.life)

    def _reuse(self, host: Host) -> None:
        """Draws the same pieces at every start, as the older version does not change."""
        drawn = random.Random(f"{self.seed} {host.name}")
        for piece in range(self.pieces):
            if drawn.random() < host.plan.kept:
                host.have |= 1 << piece
            elif drawn.random() < host.plan.kept:
                host.chooser.lengths[piece] = drawn.randrange(1, MIB)

    def _restart(self, name: str) -> None:
        host = self.hosts[name]
        if host.finished is not None or not host.alive:
            return
        host.alive, host.life, host.announces = False, host.life + 1, (0, 0)
        old = host.chooser
        host.chooser = Chooser(
            old.layout,
            old.ranking,
            old.rules,
            [Neighbour() for _ in host.peers],
            self.now,
            rng=random.Random(self.rng.random()),
        )
        self._at(self.now + 1.0, "start", name)

    def _dial(self, name: str, life: int, place: int) -> None:
        host, peer = self.hosts[name], self.hosts[self.hosts[name].peers[place]]
        if host.life != life or host.finished is not None:
            return
        if peer.plan.blocked or peer.plan.dead:
            self._at(self.now + 2.0, "link", name, life, place, Link.SILENT)
            self._at(self.now + 12.0, "dial", name, life, place)
        elif not peer.alive:
            host.chooser.linked(place, Link.REFUSED)
            self._at(self.now + 1.0, "dial", name, life, place)
        else:
            host.chooser.linked(place, Link.UP)
            host.chooser.announced(place, *peer.announces)
            self._at(self.now + NEWS, "dial", name, life, place)

    def _link(self, name: str, life: int, place: int, link: Link) -> None:
        host = self.hosts[name]
        if host.life == life:
            host.chooser.linked(place, link)

    def _tick(self, name: str, life: int) -> None:
        host = self.hosts[name]
        if host.life != life or host.finished is not None:
            return
        for step in host.chooser.next(self.now):
            self._begin(host, step)
        host.announces = (host.have, host.chooser.fetching)
        self._at(self.now + TICK, "tick", name, life)

    def _begin(self, host: Host, step: Step) -> None:
        share = host.chooser.lengths.get(step.piece, MIB) / MIB
        piece_seconds = self.piece_seconds * self.rng.uniform(0.7, 1.5) * host.plan.slow * share
        if step.source == ORIGIN:
            down = any(first <= self.now < last for first, last in self.store_down)
            self.origin_pieces += not down
            self._at(self.now + piece_seconds, "end", host.name, host.life, step, Failure.BROKEN if down else None, 0)
            return
        peer = self.hosts[host.peers[step.source]]
        failure, after = self._outcome(peer, step.piece), piece_seconds * peer.plan.slow
        if failure is Failure.BUSY:
            after = SLOT
        elif failure is Failure.STALLED:
            after = STALL
        elif failure in (Failure.BROKEN, Failure.MISSING):
            after = 0.01
        else:
            peer.uploads += 1
        uploading = failure in (None, Failure.BAD)
        self._at(self.now + after, "end", host.name, host.life, step, failure, int(uploading))

    def _outcome(self, peer: Host, piece: int) -> Failure | None:
        behaviour = peer.plan
        if behaviour.stalls:
            return Failure.STALLED
        if behaviour.resets or not peer.alive:
            return Failure.BROKEN
        if peer.uploads >= UPLOADS:
            return Failure.BUSY
        if behaviour.garbage:
            return Failure.BAD
        return None if peer.have >> piece & 1 else Failure.MISSING

    def _end(self, name: str, life: int, step: Step, failure: Failure | None, uploading: int) -> None:
        host = self.hosts[name]
        if step.source != ORIGIN:
            peer = self.hosts[host.peers[step.source]]
            peer.uploads -= uploading
            if failure is None and not peer.alive:
                failure = Failure.BROKEN
        if host.life != life or step.source not in host.chooser.sources(step.piece):
            return
        if failure is not None:
            host.bad += failure is Failure.BAD
            host.chooser.failed(step.source, step.piece, failure, self.now)
            return
        length = host.chooser.lengths.get(step.piece, self.layout.length(step.piece))
        host.chooser.received(length, self.now, from_peer=step.source != ORIGIN)
        host.chooser.arrived(step.source, step.piece, self.now)
        for other in host.chooser.sources(step.piece):
            host.chooser.cancelled(other, step.piece)
        host.have |= 1 << step.piece
        if host.chooser.complete:
            host.finished = self.now
            host.announces = (host.have, 0)
