"""What a host does next: which piece it asks which neighbour for, and which it brings from S3.

Pure: no sockets, no clock. Going to S3 is rationed by rank, so that each piece leaves S3 about once. Every rule has a
way out in time: a host that gets nothing from its neighbours may take more and more from S3, and one that is late takes
all that it misses.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate_client.swarm.choosing.flights import Flights
from tidegate_client.swarm.choosing.neighbours import ORIGIN, Failure, Link, Mode, Neighbour, Step
from tidegate_client.swarm.choosing.pace import Pace
from tidegate_client.swarm.choosing.ranks import Ranks
from tidegate_client.swarm.layout import Layout, pieces_in

FLIGHTS, FLIGHTS_A_PEER, FLIGHTS_FROM_ORIGIN = 8, 2, 2
# On a slow line many pieces at once would each take so long that the sender closes.
FEWEST_FLIGHTS = 2
# Once it no longer waits for others, a host takes from S3 what its line gives.
FLIGHTS_WHEN_LATE = 4
FIRST_ROUND, ALONE = 0.3, 3.0
BELIEF, LADDER_BELIEVES = 3.0, 3.0
SLUGGISH = 16
_BUSY, _STALLED, _LONGEST_ORIGIN_PAUSE = 0.3, 5.0, 8.0
_MOST_STALLS, _MOST_BREAKS = 3, 8


@dataclass(frozen=True, slots=True)
class Rules:
    ranks: int
    hold: float
    patience: float
    # Bytes a second that the host takes at most; None: not limited, so its line is found out by what S3 gives.
    line: float | None
    # Seconds until the Job is over.
    lasts: float


@dataclass(slots=True)
class Chooser:
    layout: Layout
    ranking: Ranks
    rules: Rules
    neighbours: list[Neighbour]
    started: float
    have: int = 0
    # Bytes to fetch of pieces that are here in part; of others it is all of them.
    lengths: dict[int, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=random.Random)
    mode: Mode = Mode.NONE
    # When a neighbour last sent a piece. S3's pieces do not count: a host that is cut off would wait anew for each.
    progress: float = 0.0
    _flights: Flights = field(default_factory=Flights)
    _own: list[tuple[int, int]] = field(default_factory=list)
    _usual: float = 0.0
    _silent_since: float | None = None
    _idle_since: float | None = None
    _origin_failures: int = 0
    _origin_pause_until: float = 0.0
    _peer_bytes_at: float = 0.0
    _pace: Pace = field(init=False)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.progress = self.started
        self._pace = Pace(self.rules.line, self.started)
        self._deadline = self.started + self.rules.lasts
        self._own = self.ranking.below(self.rules.ranks)

    def begin(self, have: int, now: float) -> None:
        """Fetching can begin: what is in the file already is known. Turns are counted from now on."""
        self.have, self.started, self.progress, self._pace.started = have, now, now, now

    # --- what happened

    @property
    def complete(self) -> bool:
        return self.have == self.layout.everything

    @property
    def bringing(self) -> int:
        """What is on its way from S3, for neighbours to know."""
        return self._flights.from_origin_pieces

    def linked(self, peer: int, link: Link) -> None:
        neighbour = self.neighbours[peer]
        neighbour.link = link
        if link is not Link.UP:
            neighbour.have = neighbour.bringing = 0

    def told(self, peer: int, have: int, bringing: int) -> None:
        neighbour = self.neighbours[peer]
        neighbour.have, neighbour.bringing = have & self.layout.everything, bringing & self.layout.everything

    def arrived(self, source: int, piece: int, now: float) -> None:
        """A whole and right piece is here."""
        began = self._land(source, piece)
        self.have |= 1 << piece
        length, took = self._length(piece), max(now - began, 1e-6)
        if source == ORIGIN:
            self._origin_failures = 0
            self._pace.origin_gave((self._flights.from_origin + 1) * length / took)
        else:
            neighbour = self.neighbours[source]
            neighbour.rate, neighbour.stalls, neighbour.breaks = length / took, 0, 0
            self._usual = 0.8 * self._usual + 0.2 * took if self._usual else took
            self.progress = now

    def received(self, length: int, now: float, *, from_peer: bool) -> None:
        """Bytes of any piece came."""
        if from_peer:
            self._peer_bytes_at = now
        self._pace.received(length, now)

    def called_off(self, source: int, piece: int) -> None:
        self._land(source, piece)

    def failed(self, source: int, piece: int, failure: Failure, now: float) -> None:
        self._land(source, piece)
        if source == ORIGIN:
            self._origin_failures = min(self._origin_failures + 1, 10)
            pause = min(_LONGEST_ORIGIN_PAUSE, 0.1 * 2**self._origin_failures)
            self._origin_pause_until = now + pause * self.rng.uniform(0.5, 1)
            return
        neighbour = self.neighbours[source]
        match failure:
            case Failure.BAD:
                neighbour.shunned = True
            case Failure.MISSING:
                neighbour.have &= ~(1 << piece)
            case Failure.BUSY:
                neighbour.busy_until = now + _BUSY * self.rng.uniform(0.5, 1.5)
            case Failure.STALLED:
                neighbour.stalls += 1
                neighbour.shunned |= neighbour.stalls >= _MOST_STALLS
                neighbour.busy_until = now + _STALLED * neighbour.stalls
            case Failure.BROKEN:
                neighbour.breaks += 1
                neighbour.shunned |= neighbour.breaks >= _MOST_BREAKS
                neighbour.busy_until = now + min(_STALLED, 0.2 * 2**neighbour.breaks)

    def sources(self, piece: int) -> tuple[int, ...]:
        """Where it is on its way from."""
        return self._flights.sources(piece)

    def lost(self, pieces: int) -> None:
        """They were here, and what is on the disk now is something else."""
        self.have &= ~pieces
        for piece in pieces_in(pieces):
            self.lengths.pop(piece, None)

    def _length(self, piece: int) -> int:
        return self.lengths.get(piece, self.layout.length(piece))

    def _land(self, source: int, piece: int) -> float:
        if source != ORIGIN:
            self.neighbours[source].flights -= 1
        return self._flights.end(source, piece)

    # --- what to do

    def next(self, now: float) -> list[Step]:
        """Steps to take now; each counts as under way until it has arrived, failed or is called off."""
        self._judge(now)
        steps: list[Step] = []
        while (missing := self._missing()) and self._flying(now) < self._places():
            step = self._ask_neighbour(missing, now)
            if step is None:
                break
            steps.append(self._begin(step, now))
        steps += self._from_origin(now)
        if not self._missing():
            steps += self._end_game(now)
        return steps

    def _missing(self) -> int:
        return self.layout.everything & ~self.have & ~self._flights.pieces

    def _flying(self, now: float) -> int:
        """What is on its way. A few peers that take far too long do not keep others from being asked."""
        began = self._flights.began()
        slow = max(self._patience(), 4 * self._usual)
        return len(began) - min(self._places(), sum(now - moment > slow for moment in began))

    def _patience(self) -> float:
        """As the order says; longer on a line that needs longer for the pieces that are on their way."""
        if self._pace.line is None:
            return self.rules.patience
        return max(self.rules.patience, 2 * self._places() * self.layout.piece_size / self._pace.line)

    def _places(self) -> int:
        """So many that each piece takes about as long as a neighbour is waited for."""
        if self._pace.line is None:
            return FLIGHTS
        return max(FEWEST_FLIGHTS, min(FLIGHTS, int(self._pace.line * self.rules.patience / self.layout.piece_size)))

    def _begin(self, step: Step, now: float) -> Step:
        self._flights.begin(step, now)
        if step.source != ORIGIN:
            self.neighbours[step.source].flights += 1
        return step

    def _judge(self, now: float) -> None:
        silent = all(n.link is Link.SILENT or n.shunned for n in self.neighbours)
        self._silent_since = (now if self._silent_since is None else self._silent_since) if silent else None
        if self._is_late(now):
            self.mode = Mode.DEADLINE
        elif silent and now - self.started >= ALONE:
            self.mode = Mode.ALONE
        elif self.mode in (Mode.ALONE, Mode.DEADLINE):
            self.mode = Mode.LADDER

    def _is_late(self, now: float) -> bool:
        missing = self.layout.everything & ~self.have
        known = (self.layout.length(piece) - short for piece, short in self.lengths.items() if missing >> piece & 1)
        left = self.layout.bytes_of(missing) - sum(known)
        return self._pace.is_late(now, whole=self.layout.size, left=left, lasts=self._deadline - self.started)

    def _ask_neighbour(self, missing: int, now: float) -> Step | None:
        """Near ones first, at random among equals; those far slower than the host itself last."""
        slow = self._pace.rate(now) / SLUGGISH
        best, best_key = -1, (True, True, 2.0)
        for place, n in enumerate(self.neighbours):
            usable = n.have & missing and not n.shunned and n.flights < FLIGHTS_A_PEER and n.busy_until <= now
            if usable:
                key = (n.rate is not None and n.rate < slow, not n.near, self.rng.random())
                if key < best_key:
                    best, best_key = place, key
        if best < 0:
            return None
        return Step(best, self._rarer(self.neighbours[best].have & missing))

    def _rarer(self, pieces: int) -> int:
        """Of two drawn at random, the one that fewer neighbours have."""
        one, other = self._draw(pieces), self._draw(pieces)
        return one if self._holders(one) <= self._holders(other) else other

    def _draw(self, pieces: int) -> int:
        shift = self.rng.randrange(self.layout.count)
        rest = pieces >> shift
        if not rest:
            rest, shift = pieces, 0
        return shift + (rest & -rest).bit_length() - 1

    def _holders(self, piece: int) -> int:
        return sum(n.have >> piece & 1 for n in self.neighbours)

    def _from_origin(self, now: float) -> list[Step]:
        late = self.mode in (Mode.ALONE, Mode.DEADLINE)
        most = min(self._places(), FLIGHTS_WHEN_LATE if late else FLIGHTS_FROM_ORIGIN)
        steps: list[Step] = []
        if now < self._origin_pause_until or self._flights.from_origin >= most:
            return steps
        for piece in self._wanted_from_origin(now, late=late):
            if self._flights.from_origin >= most or self._flying(now) >= self._places() + most:
                break
            steps.append(self._begin(Step(ORIGIN, piece), now))
        return steps

    def _wanted_from_origin(self, now: float, *, late: bool) -> Iterable[int]:
        missing = self._missing()
        if late:
            return pieces_in(missing | self._flights.overdue(now - self._patience()))
        return dict.fromkeys([*self._own_turn(missing, now), *self._ladder(missing, now)])

    def _own_turn(self, missing: int, now: float) -> Iterable[int]:
        here = now - self.started
        if here < FIRST_ROUND and any(n.link is Link.NEW for n in self.neighbours):
            return
        offered, coming = self._known(now)
        if offered & missing:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = max(now, self.started)
        idle = 0.0 if self._idle_since is None else now - self._idle_since
        for rank, piece in self._own:
            if rank and idle < rank * self.rules.hold:
                return
            if missing >> piece & 1 and not (offered | coming) >> piece & 1:
                yield piece

    def _known(self, now: float) -> tuple[int, int]:
        """What neighbours have, and what they are bringing.

        Who was caught stalling is not believed; nor is, when nothing came for a while, who never gave a right piece."""
        offered = coming = 0
        believes_all = now - max(self.progress, self._peer_bytes_at) < BELIEF
        for n in self.neighbours:
            if n.trusted and (believes_all or n.rate is not None):
                offered |= n.have
                coming |= n.bringing
        return offered, coming

    def _ladder(self, missing: int, now: float) -> Iterable[int]:
        stuck = now - self.progress - self._patience()
        if stuck <= 0:
            return ()
        # One host for each piece at first, and no piece that a neighbour has or brings; then more, then any piece.
        allowed = 4.0 ** min(stuck, 64.0)
        wanted = missing | self._flights.overdue(now - self._patience())
        if stuck < LADDER_BELIEVES:
            offered, coming = self._known(now)
            wanted &= ~(offered | coming)
        found = sorted((rank, piece) for piece in pieces_in(wanted) if (rank := self.ranking.rank(piece)) < allowed)
        if found and self.mode is Mode.NONE:
            self.mode = Mode.LADDER
        return (piece for _, piece in found)

    def _end_game(self, now: float) -> list[Step]:
        """All that is missing is on its way: what takes twice the usual time is asked for once more, elsewhere."""
        steps = []
        slow = self._pace.rate(now) / SLUGGISH
        for piece, source, began in self._flights.single():
            if now - began < 2 * max(self._usual, 0.1):
                continue
            others = [
                place
                for place, n in enumerate(self.neighbours)
                if place != source
                and n.have >> piece & 1
                and n.trusted
                and n.flights < FLIGHTS_A_PEER
                and n.busy_until <= now
                and not (n.rate is not None and n.rate < slow)
            ]
            if others:
                steps.append(self._begin(Step(self.rng.choice(others), piece), now))
        return steps
