"""The plan of a swarm: which hosts of a Job exchange pieces of its file.

All targets are known when the window closes, so neighbours are computed here instead of being discovered.
Each host derives from its number in the ring which pieces it fetches from S3.
"""

from __future__ import annotations

import base64
import hmac
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.ids import digest

FEWEST_MEMBERS = 4
DEGREE = 16
# RANKS hosts may fetch a piece from S3 without waiting for peers first. HOLD and PATIENCE are seconds.
RANKS, HOLD, PATIENCE = 12, 0.5, 5.0
_TOKEN_BYTES = 16
_NEAR_OFFSETS = DEGREE // 4


@dataclass(frozen=True, slots=True)
class Member:
    """A host of the Job with a known presence. `listen` is empty if peers cannot connect to it."""

    agent_id: str
    site: str
    zone: str = ""
    listen: tuple[str, ...] = ()
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """A host's seat: its number among the `members` of the ring, which listen, and its neighbours.

    `ranks` is 0 for a host that does not listen: it fetches no piece for others."""

    member: Member
    swarm_id: str
    number: int
    members: int
    seed: int
    ranks: int
    neighbours: tuple[Member, ...]


def swarm_id(job_key: str, site: str) -> str:
    return digest("swarm", job_key, site, length=32)


def accept_key(key: bytes, agent_id: str) -> bytes:
    """The key with which a host verifies its callers' tokens, without a list of callers."""
    return hmac.digest(key, b"accept" + agent_id.encode(), "sha256")


def token(accept: bytes, swarm: str, caller: str) -> bytes:
    """The token with which `caller` connects to the host that has `accept`. Swarm ids have a fixed length."""
    return hmac.digest(accept, swarm.encode() + caller.encode(), "sha256")[:_TOKEN_BYTES]


def terms(seat: Seat, key: bytes) -> dict[str, Any]:
    """What a host gets with its transfer: its seat and its peers. Secret, because it contains tokens."""
    me = seat.member
    peers = [
        {
            "id": peer.agent_id,
            "at": list(peer.listen),
            "pin": peer.pin,
            "token": _text(token(accept_key(key, peer.agent_id), seat.swarm_id, me.agent_id)),
            "near": peer.zone == me.zone,
        }
        for peer in seat.neighbours
    ]
    return {
        "id": seat.swarm_id,
        "number": seat.number,
        "members": seat.members,
        "seed": seat.seed,
        "ranks": seat.ranks,
        "hold": HOLD,
        "patience": PATIENCE,
        "accept": _text(accept_key(key, me.agent_id)),
        "peers": peers,
    }


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def plan(members: Iterable[Member], job_key: str, key: bytes) -> dict[str, Seat]:
    """Seats by agent id. Hosts of a site with too few members have no seat and fetch from S3."""
    sites: dict[str, dict[str, Member]] = defaultdict(dict)
    for member in members:
        sites[member.site][member.agent_id] = member
    seats: dict[str, Seat] = {}
    for site, present in sorted(sites.items()):
        listening = sum(bool(member.listen) for member in present.values())
        if len(present) >= FEWEST_MEMBERS and listening >= 2:
            seats |= _plan_site(swarm_id(job_key, site), list(present.values()), key)
    return seats


def _plan_site(swarm: str, present: Sequence[Member], key: bytes) -> dict[str, Seat]:
    placed = {m.agent_id: hmac.digest(key, swarm.encode() + m.agent_id.encode(), "sha256") for m in present}
    ring = sorted((m for m in present if m.listen), key=lambda m: (m.zone, placed[m.agent_id]))
    numbers = {member.agent_id: number for number, member in enumerate(ring)}
    size = len(ring)
    seed = int.from_bytes(hmac.digest(key, b"seed" + swarm.encode(), "sha256")[:6])
    graph = _Graph([member.zone for member in ring], random.Random(seed))  # noqa: S311 - an order, not a secret
    zones = graph.zones
    seats = {}
    for member in present:
        number = numbers.get(member.agent_id)
        if number is None:
            near = zones.get(member.zone, range(size))
            drawn = near[int.from_bytes(placed[member.agent_id][:8]) % len(near)]
            # It is not in the ring, so it gets a member at random and that member's neighbours.
            neighbours, ranks = [drawn, *graph.neighbours(drawn)][:DEGREE], 0
            number = drawn
        else:
            neighbours, ranks = graph.neighbours(number), size if size <= DEGREE + 1 else RANKS
        peers = tuple(ring[other] for other in neighbours)
        seats[member.agent_id] = Seat(member, swarm, number, size, seed, ranks, peers)
    return seats


class _Graph:
    """Neighbours in a ring of hosts sorted by zone. Symmetric, connected, at most DEGREE neighbours each.

    Half of the neighbours are in the same zone: i ± o within the zone, for offsets o of that zone. The others are i ± o
    in the whole ring; one of these offsets is coprime to the ring's size, so the ring is connected."""

    def __init__(self, zone_of: Sequence[str], rng: random.Random) -> None:
        self._size = len(zone_of)
        self._zone_of = zone_of
        self.zones = _ranges(zone_of)
        self._inner: dict[str, list[int]] = {}
        far = DEGREE // 2
        # Zones of one host each are ignored.
        if 1 < len(self.zones) < self._size:
            far -= _NEAR_OFFSETS
            self._inner = {name: _offsets(len(zone), _NEAR_OFFSETS, rng) for name, zone in self.zones.items()}
        self._far = _offsets(self._size, far, rng)

    def neighbours(self, number: int) -> list[int]:
        if self._size <= DEGREE + 1:
            return [other for other in range(self._size) if other != number]
        zone = self.zones[self._zone_of[number]]
        inner = _around(number - zone.start, len(zone), self._inner.get(self._zone_of[number], ()))
        outer = _around(number, self._size, self._far)
        return list(dict.fromkeys([*(zone.start + other for other in inner), *outer]))


def _around(place: int, size: int, offsets: Iterable[int]) -> Iterable[int]:
    around = ((place + step) % size for offset in offsets for step in (offset, -offset))
    return (other for other in around if other != place)


def _ranges(zone_of: Sequence[str]) -> dict[str, range]:
    counted: dict[str, int] = defaultdict(int)
    for zone in zone_of:
        counted[zone] += 1
    ranges, start = {}, 0
    for zone in sorted(counted):
        ranges[zone] = range(start, start + counted[zone])
        start += counted[zone]
    return ranges


def _offsets(size: int, wanted: int, rng: random.Random) -> list[int]:
    """Different distances of at most half of the ring, the first coprime to its size."""
    half = (size - 1) // 2
    if half <= wanted:
        return list(range(1, size // 2 + 1))[:wanted]
    coprime = next(o for o in iter(lambda: rng.randrange(1, half + 1), 0) if math.gcd(o, size) == 1)
    others = rng.sample(range(1, half + 1), wanted)
    return [coprime, *(offset for offset in others if offset != coprime)][:wanted]
