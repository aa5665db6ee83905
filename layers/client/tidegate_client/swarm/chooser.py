"""Decides which piece a host requests next, and from which neighbour or from S3."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tidegate_client.swarm.wire import Layout, pieces_in


class Ranks:
    """The order in which the hosts of a swarm may request a piece from S3. Each piece has a ranking of its own.

    Let n be the number of members and P the number of pieces. The base of piece p is shift + p * n / P, and the rank of
    member i is (i - base) / stride mod n. Shift and stride follow from the swarm's seed, so every host computes the
    same rankings. In these rankings, neighbours of the ring are far apart."""

    def __init__(self, number: int, members: int, seed: int, pieces: int) -> None:
        self._number, self._members, self._pieces = number, members, pieces
        self._shift = seed % members
        stride = 1 + (seed // members) % members
        while math.gcd(stride, members) != 1:
            stride = stride % members + 1
        self._inverse = pow(stride, -1, members) if members > 1 else 0

    def rank(self, piece: int) -> int:
        base = self._shift + piece * self._members // self._pieces
        return (self._number - base) * self._inverse % self._members

    def below(self, limit: int) -> list[tuple[int, int]]:
        """Returns (rank, piece) for each piece where this host's rank is below the limit, lowest rank first."""
        ranked = ((self.rank(piece), piece) for piece in range(self._pieces))
        return sorted(pair for pair in ranked if pair[0] < limit)


# --- pace
# The rate at which a host receives bytes, and whether it is too low.

# A host is late after LATE_SECONDS plus LATE_TIMES the time that its line needs. An unknown line counts as 1 Gbit/s.
LATE_SECONDS, LATE_TIMES, LINE = 15.0, 4, 125_000_000.0
_RATE_SECONDS = 5.0


@dataclass
class Pace:
    """Measures the rate at which this host receives bytes, and decides whether the host is late.

    `limit`: the host's own limit in bytes a second. If it is None, there is no limit, and the rate of the host's line
    is learned from what S3 sends."""

    limit: float | None
    started: float
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _recent_bytes: int = 0
    _line: float = 0.0

    def received(self, length: int, now: float) -> None:
        self._arrivals.append((now, length))
        self._recent_bytes += length

    def origin_gave(self, bytes_a_second: float) -> None:
        """Notes the rate at which S3 sent a piece."""
        self._line = max(0.7 * self._line, bytes_a_second)

    @property
    def line(self) -> float | None:
        """Bytes a second that this host can receive; None while this rate is unknown."""
        return self.limit or self._line or None

    def rate(self, now: float) -> float:
        """Returns the rate of the last few seconds: the bytes a second that were received from all sources."""
        while self._arrivals and self._arrivals[0][0] < now - _RATE_SECONDS:
            self._recent_bytes -= self._arrivals.popleft()[1]
        return self._recent_bytes / max(0.5, min(_RATE_SECONDS, now - self.started))

    def is_late(self, now: float, *, whole: int, left: int, lasts: float) -> bool:
        """Returns whether the host is late.

        It is late if S3 alone would have finished long ago. It is also late if, at the current rate, the Job's deadline
        will be missed. `whole`: bytes of the file; `left`: bytes that are missing; `lasts`: seconds from the start to
        the deadline."""
        elapsed = now - self.started
        line = self.line or LINE
        if elapsed > LATE_SECONDS + LATE_TIMES * whole / line:
            return True
        if elapsed < min(LATE_SECONDS, lasts / 8):
            return False
        return left > self.rate(now) * (lasts - elapsed) / 2


# --- neighbours
# The state of a host's neighbours, and the types in which its decisions are expressed.


class Link(Enum):
    """The connection to a neighbour: not tried yet, connected, refused because the neighbour has not started, or no
    answer."""

    NEW = "new"
    UP = "up"
    REFUSED = "refused"
    SILENT = "silent"


class Failure(Enum):
    """Why a piece could not be fetched from a source."""

    BUSY = "busy"
    MISSING = "missing"
    BAD = "bad"
    STALLED = "stalled"
    BROKEN = "broken"


class Mode(Enum):
    """How the host fetches pieces.

    NONE: mostly from neighbours. LADDER: more and more from S3, because neighbours send too little. ALONE: from S3,
    because no neighbour answers. DEADLINE: from S3, because the host is late."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"


class FellBack(Enum):
    """Why a host took pieces from S3 that neighbours should have sent; reported to the API.

    NO_PEERS: no neighbour listens. BAD_PIECES: neighbours were banned for wrong pieces. BROKEN: the swarm did not
    deliver the file, for example without a valid list of pieces. The other values mean the same as in `Mode`."""

    NONE = "none"
    LADDER = "ladder"
    ALONE = "alone"
    DEADLINE = "deadline"
    NO_PEERS = "no_peers"
    BAD_PIECES = "bad_pieces"
    BROKEN = "broken"


def why_fell_back(mode: Mode, *, peers: int, bad_pieces: int) -> FellBack:
    if mode is Mode.NONE:
        return FellBack.NONE
    if not peers:
        return FellBack.NO_PEERS
    if mode is not Mode.DEADLINE and bad_pieces:
        return FellBack.BAD_PIECES
    return FellBack(mode.value)


# Number of the source S3; other sources are indexes of neighbours.
ORIGIN = -1


@dataclass(frozen=True)
class Step:
    """One request to make: fetch this piece from that neighbour, or from S3 (ORIGIN)."""

    source: int
    piece: int


@dataclass
class Neighbour:
    """What this host knows of a neighbour.

    `have`: the pieces that the neighbour has completely; `fetching`: the pieces that the neighbour is fetching from
    S3."""

    near: bool = False
    link: Link = Link.NEW
    have: int = 0
    fetching: int = 0
    flights: int = 0
    busy_until: float = 0.0
    stalls: int = 0
    breaks: int = 0
    banned: bool = False
    # Bytes a second of its last piece; None until it has sent one.
    rate: float | None = None

    @property
    def trusted(self) -> bool:
        return not self.banned and not self.stalls


@dataclass
class Flights:
    """The requests that are under way: from which sources each piece is being fetched, and since when."""

    _by_piece: dict[int, dict[int, float]] = field(default_factory=dict)
    from_origin: int = 0

    def begin(self, step: Step, now: float) -> None:
        self._by_piece.setdefault(step.piece, {})[step.source] = now
        self.from_origin += step.source == ORIGIN

    def end(self, source: int, piece: int) -> float:
        """Removes a request and returns when it began."""
        flights = self._by_piece[piece]
        began = flights.pop(source)
        if not flights:
            del self._by_piece[piece]
        self.from_origin -= source == ORIGIN
        return began

    def sources(self, piece: int) -> tuple[int, ...]:
        return tuple(self._by_piece.get(piece, ()))

    @property
    def pieces(self) -> int:
        return sum(1 << piece for piece in self._by_piece)

    @property
    def from_origin_pieces(self) -> int:
        return sum(1 << piece for piece, flights in self._by_piece.items() if ORIGIN in flights)

    def began(self) -> list[float]:
        return [began for flights in self._by_piece.values() for began in flights.values()]

    def single(self) -> list[tuple[int, int, float]]:
        """Returns (piece, source, start) of every piece that is being fetched from one source only."""
        found = (
            (piece, *next(iter(flights.items()))) for piece, flights in self._by_piece.items() if len(flights) == 1
        )
        return list(found)

    def overdue(self, since: float) -> int:
        """Returns the pieces that were requested before `since`, from one neighbour only, and have not arrived."""
        return sum(1 << piece for piece, source, began in self.single() if source != ORIGIN and began < since)


# --- chooser
# Decides which piece to request from which neighbour next, and which to fetch from S3. No sockets, no clock.
#
# S3 is rationed by rank, so that each piece leaves S3 about once. No rule waits for ever: a host that receives nothing
# from its neighbours may take more and more pieces from S3, and one that is late takes all that are missing.

FLIGHTS, FLIGHTS_A_PEER, FLIGHTS_FROM_ORIGIN = 8, 2, 2
# On a slow line, each of many concurrent pieces would take so long that senders give up.
FEWEST_FLIGHTS = 2
# A host that no longer waits for its neighbours uses more requests to S3 at once.
FLIGHTS_WHEN_LATE = 4
FIRST_ROUND_SECONDS, ALONE_SECONDS = 0.3, 3.0
# If no byte arrives for this long, announcements of neighbours that have sent nothing yet no longer count. After the
# second time in LADDER mode, no announcements count.
TRUST_SECONDS, LADDER_TRUST_SECONDS = 3.0, 3.0
# A neighbour is slow below this fraction of the host's own rate.
SLOW_FRACTION = 16
_BUSY_PAUSE, _STALL_PAUSE, _LONGEST_ORIGIN_PAUSE = 0.3, 5.0, 8.0
_MOST_STALLS, _MOST_BREAKS = 3, 8


@dataclass(frozen=True)
class Rules:
    """When a host may fetch a piece from S3.

    Let r be the host's rank for the piece. If r < `ranks`, the host may fetch the piece when no neighbour has offered a
    missing piece for r * `hold` seconds. If neighbours have sent nothing for `patience` seconds, more and more hosts
    may fetch it."""

    ranks: int
    hold: float
    patience: float
    # The host's own limit in bytes a second; None: no limit, and the line's rate is learned from S3.
    line: float | None
    # Seconds until the Job's deadline.
    lasts: float


@dataclass
class Chooser:
    """Chooses the next requests of this host, from the announcements of its neighbours and its own rank."""

    layout: Layout
    ranking: Ranks
    rules: Rules
    neighbours: list[Neighbour]
    started: float
    have: int = 0
    # The bytes still to fetch of pieces that have some of their blocks already.
    lengths: dict[int, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=random.Random)
    mode: Mode = Mode.NONE
    # When a neighbour last sent a piece. Pieces from S3 do not count: an isolated host would wait after each of them.
    last_peer_piece: float = 0.0
    _flights: Flights = field(default_factory=Flights)
    # (rank, piece) for which this host ranks low enough to go to S3 by itself.
    _own_pieces: list[tuple[int, int]] = field(default_factory=list)
    _usual_seconds: float = 0.0
    # Since when no neighbour has offered a missing piece.
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
        """Starts the clocks. `have`: the pieces that are on disk already."""
        self.have, self.started, self.last_peer_piece, self._pace.started = have, now, now, now

    # --- events

    @property
    def complete(self) -> bool:
        return self.have == self.layout.everything

    @property
    def fetching(self) -> int:
        """The pieces that this host is fetching from S3. The host announces them to its neighbours."""
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
        """Notes that a piece is complete and verified."""
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
        """Notes that bytes of some piece have arrived."""
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
        if failure is Failure.BAD:
            neighbour.banned = True
        elif failure is Failure.MISSING:
            neighbour.have &= ~(1 << piece)
        elif failure is Failure.BUSY:
            neighbour.busy_until = now + _BUSY_PAUSE * self.rng.uniform(0.5, 1.5)
        elif failure is Failure.STALLED:
            neighbour.stalls += 1
            neighbour.banned |= neighbour.stalls >= _MOST_STALLS
            neighbour.busy_until = now + _STALL_PAUSE * neighbour.stalls
        elif failure is Failure.BROKEN:
            neighbour.breaks += 1
            neighbour.banned |= neighbour.breaks >= _MOST_BREAKS
            neighbour.busy_until = now + min(_STALL_PAUSE, 0.2 * 2**neighbour.breaks)

    def sources(self, piece: int) -> tuple[int, ...]:
        """Returns the sources from which the piece is being fetched."""
        return self._flights.sources(piece)

    def lost(self, pieces: int) -> None:
        """Marks pieces as missing again, because another process changed them on disk."""
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
        """Returns the requests to start now.

        Each request counts as under way until its piece has arrived, or until the request failed or was cancelled."""
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
        """Returns the number of requests under way.

        Most overdue requests are not counted, so that slow peers do not block the others."""
        began = self._flights.began()
        slow = max(self._patience(), 4 * self._usual_seconds)
        return len(began) - min(self._most_flights(), sum(now - moment > slow for moment in began))

    def _patience(self) -> float:
        """Returns the rules' patience, or a longer time if the line needs it for the pieces that are under way."""
        if self._pace.line is None:
            return self.rules.patience
        return max(self.rules.patience, 2 * self._most_flights() * self.layout.piece_size / self._pace.line)

    def _most_flights(self) -> int:
        """Returns how many pieces to fetch at once: as many as the line can complete within the rules' patience."""
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
        """Returns a request for a missing piece to a neighbour that has the piece; None if no neighbour can be asked
        now.

        Slow neighbours come last. Otherwise near neighbours come first. Among equals, one is picked at random."""
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
        """Draws two pieces at random and returns the piece that fewer neighbours have."""
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
        """Yields pieces to fetch from S3: by its rank it is this host's turn, and no neighbour has or fetches the
        piece."""
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
        """Returns (the pieces that neighbours have, the pieces that neighbours are fetching from S3).

        Neighbours that stalled are left out. If neighbours have sent no bytes for a while, those that never sent a
        right piece are left out too."""
        offered = coming = 0
        trusts_all = now - max(self.last_peer_piece, self._peer_bytes_at) < TRUST_SECONDS
        for n in self.neighbours:
            if n.trusted and (trusts_all or n.rate is not None):
                offered |= n.have
                coming |= n.fetching
        return offered, coming

    def _ladder(self, missing: int, now: float) -> Iterable[int]:
        """Returns the pieces to fetch from S3 because neighbours have sent none for too long.

        The number of these pieces grows every second."""
        stuck = now - self.last_peer_piece - self._patience()
        if stuck <= 0:
            return ()
        # At first one host for each piece, and only pieces that nobody announces; then more hosts, and all pieces.
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
        """Requests overdue pieces from a second neighbour. Called when every missing piece is under way."""
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
