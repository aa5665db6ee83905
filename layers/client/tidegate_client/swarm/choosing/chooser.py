"""Decides which piece to request from which neighbour next, and which to fetch from S3. No sockets, no clock.

S3 is rationed by rank, so that each piece leaves S3 about once. No rule waits for ever: a host that receives nothing
from its neighbours may take more and more pieces from S3, and one that is late takes all that are missing.
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
# On a slow line many pieces at once would each take so long that senders give up.
FEWEST_FLIGHTS = 2
# A host that no longer waits for its neighbours uses more requests to S3 at once.
FLIGHTS_WHEN_LATE = 4
FIRST_ROUND_SECONDS, ALONE_SECONDS = 0.3, 3.0
# Announcements of neighbours that have sent nothing yet count for this long without any bytes; on the ladder likewise.
TRUST_SECONDS, LADDER_TRUST_SECONDS = 3.0, 3.0
# A neighbour is slow below this fraction of the host's own rate.
SLOW_FRACTION = 16
_BUSY_PAUSE, _STALL_PAUSE, _LONGEST_ORIGIN_PAUSE = 0.3, 5.0, 8.0
_MOST_STALLS, _MOST_BREAKS = 3, 8


@dataclass(frozen=True, slots=True)
class Rules:
    """Rank r may go to S3 after r * `hold` seconds without offers, if r < `ranks`; any rank after `patience`."""

    ranks: int
    hold: float
    patience: float
    # The host's own limit in bytes a second; None: no limit, and the line's rate is learned from S3.
    line: float | None
    # Seconds until the Job's deadline.
    lasts: float


@dataclass(slots=True)
class Chooser:
    layout: Layout
    ranking: Ranks
    rules: Rules
    neighbours: list[Neighbour]
    started: float
    have: int = 0
    # Bytes to fetch of pieces of which some blocks are here already.
    lengths: dict[int, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=random.Random)
    mode: Mode = Mode.NONE
    # When a neighbour last sent a piece. Pieces from S3 do not count: an isolated host would wait again after each.
    last_peer_piece: float = 0.0
    _flights: Flights = field(default_factory=Flights)
    # (rank, piece) for which this host ranks low enough to go to S3 by itself.
    _own_pieces: list[tuple[int, int]] = field(default_factory=list)
    _usual_seconds: float = 0.0
    # Since when no neighbour offers a missing piece.
    _idle_since: float | None = None
    _origin_failures: int = 0
    _origin_pause_until: float = 0.0
    _peer_bytes_at: float = 0.0
    _pace: Pace = field(init=False)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.last_peer_piece = self.started
        self._pace = Pace(self.rules.line, self.started)
        self._deadline = self.started + self.rules.lasts
        self._own_pieces = self.ranking.below(self.rules.ranks)

    def begin(self, have: int, now: float) -> None:
        """Starts the clocks once the pieces that are on disk already are known."""
        self.have, self.started, self.last_peer_piece, self._pace.started = have, now, now, now

    # --- events

    @property
    def complete(self) -> bool:
        return self.have == self.layout.everything

    @property
    def fetching(self) -> int:
        """The pieces that this host is fetching from S3; announced to its neighbours."""
        return self._flights.from_origin_pieces

    def linked(self, peer: int, link: Link) -> None:
        neighbour = self.neighbours[peer]
        neighbour.link = link
        if link is not Link.UP:
            neighbour.have = neighbour.fetching = 0

    def announced(self, peer: int, have: int, fetching: int) -> None:
        neighbour = self.neighbours[peer]
        neighbour.have, neighbour.fetching = have & self.layout.everything, fetching & self.layout.everything

    def arrived(self, source: int, piece: int, now: float) -> None:
        """A piece is complete and verified."""
        began = self._end_flight(source, piece)
        self.have |= 1 << piece
        length, took = self._length(piece), max(now - began, 1e-6)
        if source == ORIGIN:
            self._origin_failures = 0
            self._pace.origin_gave((self._flights.from_origin + 1) * length / took)
        else:
            neighbour = self.neighbours[source]
            neighbour.rate, neighbour.stalls, neighbour.breaks = length / took, 0, 0
            self._usual_seconds = 0.8 * self._usual_seconds + 0.2 * took if self._usual_seconds else took
            self.last_peer_piece = now

    def received(self, length: int, now: float, *, from_peer: bool) -> None:
        """Bytes of any piece arrived."""
        if from_peer:
            self._peer_bytes_at = now
        self._pace.received(length, now)

    def cancelled(self, source: int, piece: int) -> None:
        self._end_flight(source, piece)

    def failed(self, source: int, piece: int, failure: Failure, now: float) -> None:
        self._end_flight(source, piece)
        if source == ORIGIN:
            self._origin_failures = min(self._origin_failures + 1, 10)
            pause = min(_LONGEST_ORIGIN_PAUSE, 0.1 * 2**self._origin_failures)
            self._origin_pause_until = now + pause * self.rng.uniform(0.5, 1)
            return
        neighbour = self.neighbours[source]
        match failure:
            case Failure.BAD:
                neighbour.banned = True
            case Failure.MISSING:
                neighbour.have &= ~(1 << piece)
            case Failure.BUSY:
                neighbour.busy_until = now + _BUSY_PAUSE * self.rng.uniform(0.5, 1.5)
            case Failure.STALLED:
                neighbour.stalls += 1
                neighbour.banned |= neighbour.stalls >= _MOST_STALLS
                neighbour.busy_until = now + _STALL_PAUSE * neighbour.stalls
            case Failure.BROKEN:
                neighbour.breaks += 1
                neighbour.banned |= neighbour.breaks >= _MOST_BREAKS
                neighbour.busy_until = now + min(_STALL_PAUSE, 0.2 * 2**neighbour.breaks)

    def sources(self, piece: int) -> tuple[int, ...]:
        """The sources from which the piece is being fetched."""
        return self._flights.sources(piece)

    def lost(self, pieces: int) -> None:
        """These pieces were complete, but were changed on disk by somebody else."""
        self.have &= ~pieces
        for piece in pieces_in(pieces):
            self.lengths.pop(piece, None)

    def _length(self, piece: int) -> int:
        return self.lengths.get(piece, self.layout.length(piece))

    def _end_flight(self, source: int, piece: int) -> float:
        if source != ORIGIN:
            self.neighbours[source].flights -= 1
        return self._flights.end(source, piece)

    # --- decisions

    def next(self, now: float) -> list[Step]:
        """The steps to start now. Each counts as in flight until it has arrived, failed or was cancelled."""
        self._update_mode(now)
        steps: list[Step] = []
        while (missing := self._missing()) and self._in_flight(now) < self._most_flights():
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

    def _in_flight(self, now: float) -> int:
        """The number of flights, without some that take far too long: slow peers must not block the others."""
        began = self._flights.began()
        slow = max(self._patience(), 4 * self._usual_seconds)
        return len(began) - min(self._most_flights(), sum(now - moment > slow for moment in began))

    def _patience(self) -> float:
        """The rules' patience, or longer if the line needs longer for the pieces in flight."""
        if self._pace.line is None:
            return self.rules.patience
        return max(self.rules.patience, 2 * self._most_flights() * self.layout.piece_size / self._pace.line)

    def _most_flights(self) -> int:
        """As many as the line can complete within the rules' patience."""
        if self._pace.line is None:
            return FLIGHTS
        return max(FEWEST_FLIGHTS, min(FLIGHTS, int(self._pace.line * self.rules.patience / self.layout.piece_size)))

    def _begin(self, step: Step, now: float) -> Step:
        self._flights.begin(step, now)
        if step.source != ORIGIN:
            self.neighbours[step.source].flights += 1
        return step

    def _update_mode(self, now: float) -> None:
        silent = all(n.link is Link.SILENT or n.banned for n in self.neighbours)
        if self._is_late(now):
            self.mode = Mode.DEADLINE
        elif silent and now - self.started >= ALONE_SECONDS:
            self.mode = Mode.ALONE
        elif self.mode in (Mode.ALONE, Mode.DEADLINE):
            self.mode = Mode.LADDER

    def _is_late(self, now: float) -> bool:
        missing = self.layout.everything & ~self.have
        here = (self.layout.length(piece) - rest for piece, rest in self.lengths.items() if missing >> piece & 1)
        left = self.layout.bytes_of(missing) - sum(here)
        return self._pace.is_late(now, whole=self.layout.size, left=left, lasts=self._deadline - self.started)

    def _ask_neighbour(self, missing: int, now: float) -> Step | None:
        """Picks a neighbour with a missing piece: near ones first, slow ones last, at random among equals."""
        slow = self._pace.rate(now) / SLOW_FRACTION
        best, best_key = -1, (True, True, 2.0)
        for place, n in enumerate(self.neighbours):
            usable = n.have & missing and not n.banned and n.flights < FLIGHTS_A_PEER and n.busy_until <= now
            if usable:
                key = (n.rate is not None and n.rate < slow, not n.near, self.rng.random())
                if key < best_key:
                    best, best_key = place, key
        if best < 0:
            return None
        return Step(best, self._rarer(self.neighbours[best].have & missing))

    def _rarer(self, pieces: int) -> int:
        """Of two pieces drawn at random, the one that fewer neighbours have."""
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
        most = min(self._most_flights(), FLIGHTS_WHEN_LATE if late else FLIGHTS_FROM_ORIGIN)
        steps: list[Step] = []
        if now < self._origin_pause_until or self._flights.from_origin >= most:
            return steps
        for piece in self._wanted_from_origin(now, late=late):
            if self._flights.from_origin >= most or self._in_flight(now) >= self._most_flights() + most:
                break
            steps.append(self._begin(Step(ORIGIN, piece), now))
        return steps

    def _wanted_from_origin(self, now: float, *, late: bool) -> Iterable[int]:
        missing = self._missing()
        if late:
            return pieces_in(missing | self._flights.overdue(now - self._patience()))
        return dict.fromkeys([*self._own_turn(missing, now), *self._ladder(missing, now)])

    def _own_turn(self, missing: int, now: float) -> Iterable[int]:
        """Pieces for which it is this host's turn by rank, and that no neighbour has or is fetching."""
        if now - self.started < FIRST_ROUND_SECONDS and any(n.link is Link.NEW for n in self.neighbours):
            return
        offered, coming = self._trusted_announcements(now)
        if offered & missing:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = max(now, self.started)
        idle = 0.0 if self._idle_since is None else now - self._idle_since
        for rank, piece in self._own_pieces:
            if rank and idle < rank * self.rules.hold:
                return
            if missing >> piece & 1 and not (offered | coming) >> piece & 1:
                yield piece

    def _trusted_announcements(self, now: float) -> tuple[int, int]:
        """The pieces that neighbours have, and those that they are fetching from S3.

        Neighbours that stalled do not count, nor, after a while without bytes, those that never sent a right piece."""
        offered = coming = 0
        trusts_all = now - max(self.last_peer_piece, self._peer_bytes_at) < TRUST_SECONDS
        for n in self.neighbours:
            if n.trusted and (trusts_all or n.rate is not None):
                offered |= n.have
                coming |= n.fetching
        return offered, coming

    def _ladder(self, missing: int, now: float) -> Iterable[int]:
        """Pieces to fetch from S3 because no neighbour has sent one for longer than patience: more every second."""
        stuck = now - self.last_peer_piece - self._patience()
        if stuck <= 0:
            return ()
        # At first one host per piece, and only pieces that no neighbour announces; then more hosts, then any piece.
        allowed = 4.0 ** min(stuck, 64.0)
        wanted = missing | self._flights.overdue(now - self._patience())
        if stuck < LADDER_TRUST_SECONDS:
            offered, coming = self._trusted_announcements(now)
            wanted &= ~(offered | coming)
        found = sorted((rank, piece) for piece in pieces_in(wanted) if (rank := self.ranking.rank(piece)) < allowed)
        if found and self.mode is Mode.NONE:
            self.mode = Mode.LADDER
        return (piece for _, piece in found)

    def _end_game(self, now: float) -> list[Step]:
        """When everything missing is in flight: requests pieces that take twice the usual time from a second peer."""
        steps = []
        slow = self._pace.rate(now) / SLOW_FRACTION
        for piece, source, began in self._flights.single():
            if now - began < 2 * max(self._usual_seconds, 0.1):
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
