"""The swarm of a Job: where its hosts are, which of them exchange pieces of its file, and what that saved."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from tidegate.aws import keys
from tidegate.aws.clients import region
from tidegate.aws.table import Store, put, update
from tidegate.common.ids import Clock, digest, iso
from tidegate.distribution import Distribution
from tidegate.distribution.model import Job
from tidegate.errors import Invalid, RecordNotFound
from tidegate.files.reading import SMALLEST_FILE
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.records import F, item_of, record_from

# --- presence
# The presence of agents: their site, and the addresses at which peers reach them.

LASTS_SECONDS = 2 * 3600
SMALLEST_PORT, LARGEST_PORT = 1024, 65535
# Addresses that only hosts of the same owner reach. Not loopback, which is a different host for everyone.
PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")


@dataclass(frozen=True, slots=True)
class Presence:
    """An agent's site and the addresses at which peers reach it, as the agent reports them."""

    agent_id: str
    site: Annotated[str, F("the data centre; a swarm stays within one site")]
    zone: Annotated[str, F("rack or availability zone; peers of the same zone are preferred", shown=False)]
    listen: Annotated[
        tuple[str, ...], F("addresses `host:port` at which peers can reach the host; empty if it only downloads")
    ]
    pin: Annotated[str, F("SHA-256 of the agent's TLS certificate, base64url; required with `listen`", shown=False)]
    upload_mbit: Annotated[float | None, F("limit for sending to peers, in megabits per second")] = None
    reached: Annotated[
        bool, F("false if no peer could connect to the host in its last two swarms: then peers are not sent to it")
    ] = True


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """A project's settings: whether it uses swarms, the networks of peers, and sites that S3 serves for free."""

    swarm: Annotated[
        str,
        F(
            "`auto`: hosts of a site also send the file to each other, except those in an availability zone of the "
            "bucket's region, which S3 serves for free; `on`: those too; `off`: every host downloads it"
        ),
    ] = "auto"
    peer_networks: Annotated[
        tuple[str, ...], F("networks (CIDR) in which peers may have addresses; private networks if empty")
    ] = ()
    free_sites: Annotated[tuple[str, ...], F("sites that S3 serves free of charge: their hosts use S3 alone")] = ()

    @property
    def enabled(self) -> bool:
        return self.swarm != "off"


def in_region(zone: str, ours: str) -> bool:
    """Whether a zone has the name of an availability zone of the region: `eu-central-1a`, but no local zone."""
    return zone[:-1] == ours and zone[-1:].isalpha()


def network_fault(given: str) -> str | None:
    """The reason why the text is not a network. None if it is one."""
    try:
        ipaddress.ip_network(given)
    except ValueError as error:
        return f"{error}: write a network such as 10.0.0.0/8"
    return None


def address_fault(address: str, networks: Iterable[str], source: str) -> str | None:
    """The reason why an address cannot be given to peers. None if it can.

    `source`: the address from which the agent's request came."""
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return f"{address!r} is not an IP address and a port, as in 10.1.2.3:7471 or [2001:db8::3]:7471"
    if not port.isascii() or not port.isdigit() or not SMALLEST_PORT <= int(port) <= LARGEST_PORT:
        return f"the port of {address!r} is not allowed: use one from {SMALLEST_PORT} to {LARGEST_PORT}"
    if str(ip) == source or any(_holds(network, ip) for network in networks):
        return None
    return (
        f"{ip} is in none of the project's peer_networks ({', '.join(networks)}), and the request did not come from it:"
        " listen at another address, or ask an admin to add its network"
    )


def _holds(network: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    known = ipaddress.ip_network(network)
    return known.version == ip.version and ip in known


# --- plan
# The plan of a swarm: which hosts of a Job exchange pieces of its file.
#
# All targets are known when the window closes, so neighbours are computed here instead of being discovered.
# Each host derives from its number in the ring which pieces it fetches from S3.

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
    """A host's place in a swarm: its number in the ring, the number of hosts in the ring, and its neighbours.

    Only hosts that listen are in the ring. The other hosts have 0 `ranks`, and fetch no pieces for others."""

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
    """The key with which a host verifies its callers' tokens. So the host needs no list of callers."""
    return hmac.digest(key, b"accept" + agent_id.encode(), "sha256")


def token(accept: bytes, swarm: str, caller: str) -> bytes:
    """The token with which `caller` connects to the host that has the key `accept`.

    The text that is signed is unambiguous, because all swarm ids have the same length."""
    return hmac.digest(accept, swarm.encode() + caller.encode(), "sha256")[:_TOKEN_BYTES]


def terms(seat: Seat, key: bytes) -> dict[str, Any]:
    """What a host gets with its transfer: its seat and its peers. This is secret, because it contains tokens."""
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
            # A host outside the ring gets a random member of it, and that member's neighbours.
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
    in the whole ring. One of these offsets is coprime to the ring's size. So the ring is connected."""

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
    """At most `wanted` different distances, each at most half of the ring. The first is coprime to the ring's size."""
    half = (size - 1) // 2
    if half <= wanted:
        return list(range(1, size // 2 + 1))[:wanted]
    coprime = next(o for o in iter(lambda: rng.randrange(1, half + 1), 0) if math.gcd(o, size) == 1)
    others = rng.sample(range(1, half + 1), wanted)
    return [coprime, *(offset for offset in others if offset != coprime)][:wanted]


class PresenceStore(Store):
    def put(self, project_id: str, presence: Presence, expires_at: int) -> None:
        key = keys.presence(project_id, presence.agent_id)
        self._table.write(put(key | item_of(presence) | {"expires_at": expires_at}))

    def get_many(self, project_id: str, agent_ids: Iterable[str], now: float) -> list[Presence]:
        """The presences that have not expired. DynamoDB's TTL may delete expired ones only days later."""
        found = self._table.batch_get(keys.presence(project_id, agent_id) for agent_id in dict.fromkeys(agent_ids))
        return [record_from(Presence, item) for item in found if item["expires_at"] > now]


class SwarmSettingsStore(Store):
    """Swarm settings, stored in the project's record."""

    def get(self, project_id: str) -> SwarmSettings:
        return record_from(SwarmSettings, self._table.get(keys.project(project_id)) or {})

    def put(self, project_id: str, settings: SwarmSettings, line: AuditLine) -> bool:
        """Stores the settings. False if there is no such project."""
        sets = {
            "swarm": settings.swarm,
            "peer_networks": list(settings.peer_networks),
            "free_sites": list(settings.free_sites),
        }
        return self._table.try_write(update(keys.project(project_id), sets), audit_write(line))


class Presences:
    """Stores agents' presences and projects' swarm settings, and checks them."""

    def __init__(self, store: PresenceStore, settings: SwarmSettingsStore, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock

    def put(self, project_id: str, presence: Presence, source: str) -> str:
        """Stores a presence and returns when it expires.

        `source`: the address of the request. Invalid if an address of the presence is neither `source` nor in the
        project's networks."""
        if presence.listen:
            if not presence.pin:
                raise _invalid("pin", "required with `listen`: send the SHA-256 of the agent's certificate")
            networks = self._settings.get(project_id).peer_networks or PRIVATE_NETWORKS
            for address in presence.listen:
                if fault := address_fault(address, networks, source):
                    raise _invalid("listen", fault)
        until = self._clock() + timedelta(seconds=LASTS_SECONDS)
        self._store.put(project_id, presence, int(until.timestamp()))
        return iso(until)

    def get(self, project_id: str, agent_id: str) -> Presence | None:
        """The agent's presence. None if it has expired, or if the agent takes part in no swarm."""
        return next(iter(self._store.get_many(project_id, [agent_id], self._clock().timestamp())), None)

    def settings(self, project_id: str) -> SwarmSettings:
        return self._settings.get(project_id)

    def change_settings(self, project_id: str, settings: SwarmSettings, line: AuditLine) -> SwarmSettings:
        for network in settings.peer_networks:
            if fault := network_fault(network):
                raise _invalid("peer_networks", fault)
        if not self._settings.put(project_id, settings, line):
            raise RecordNotFound(f"no project has the id {project_id}")
        return settings


def _invalid(field: str, fault: str) -> Invalid:
    return Invalid(fault, errors=[{"loc": ["body", field], "msg": fault}])


class JobSwarm:
    """The swarm of one Job. A host without a seat fetches from S3."""

    def __init__(self, seats: dict[str, Seat], key: bytes, shared: dict[str, Any]) -> None:
        self._seats = seats
        self._key = key
        self._shared = shared

    def has(self, agent_id: str) -> bool:
        return agent_id in self._seats

    def terms_of(self, agent_id: str) -> dict[str, Any] | None:
        seat = self._seats.get(agent_id)
        return terms(seat, self._key) | self._shared if seat else None


NO_SWARM = JobSwarm({}, b"", {})


def swarm_of(d: Distribution, job: Job, size: int) -> JobSwarm:
    """The swarm of a Job, which all its transfers share.

    If each transfer had a swarm of its own, S3 would send the file to each of them."""
    place = (job.project_id, job.key)
    if d.last_swarm is None or d.last_swarm[0] != place:
        d.last_swarm = place, _plan(d, job, size)
    return d.last_swarm[1]


def _plan(d: Distribution, job: Job, size: int) -> JobSwarm:
    too_small = size < SMALLEST_FILE or job.counts.total < FEWEST_MEMBERS
    if too_small or job.spec.swarm == "off" or job.swarm_key is None:
        return NO_SWARM
    settings = d.swarm_settings.get(job.project_id)
    content = d.contents.get(job.project_id, job.spec.file_signature) if settings.enabled else None
    if content is None or content.pieces_sha256 is None:
        return NO_SWARM
    now = d.clock().timestamp()
    shards = d.targets.shards(job, range(job.shard_count or 0))
    agents = (target.agent_id for shard in shards for target in shard.states)
    present = d.presence_store.get_many(job.project_id, agents, now)
    key = bytes.fromhex(job.swarm_key)
    seats = plan(_members(present, settings), job.key, key)
    shared = {
        "piece_size": content.piece_size,
        "pieces_sha256": content.pieces_sha256,
        "blocks_sha256": content.blocks_sha256,
        "dispatched_at": round(now, 3),
    }
    return JobSwarm(seats, key, shared)


def _members(present: Iterable[Presence], settings: SwarmSettings) -> Iterable[Member]:
    """The hosts that take part in a swarm. Leaves out hosts that S3 serves for free.

    A host that peers cannot reach only fetches. From S3 to an instance in its region, 1 TB costs $0.05 (requests).
    Between availability zones, 1 GB costs $0.01 each way."""
    ours = region()
    for one in present:
        is_free = settings.swarm != "on" and in_region(one.zone, ours)
        if one.site not in settings.free_sites and not is_free:
            yield Member(one.agent_id, one.site, one.zone, one.listen if one.reached else (), one.pin)


# Small swarms need a larger part from S3; the alarm is for swarms that should have worked.
_ENOUGH_HOSTS = 20


def publish_swarm_metrics(job: Job) -> None:
    """Writes the metrics of a Job's swarm to the log (EMF), which needs no AWS call. Does nothing without a swarm."""
    figures = job.swarm
    if not figures.hosts:
        return
    from aws_lambda_powertools import Metrics
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = Metrics(service="distribution")
    metrics.add_metric("SwarmOriginBytes", MetricUnit.Bytes, figures.origin_bytes)
    metrics.add_metric("SwarmPeerBytes", MetricUnit.Bytes, figures.peer_bytes)
    metrics.add_metric("SwarmBadPieces", MetricUnit.Count, figures.bad_pieces)
    metrics.add_metric("SwarmFallbacks", MetricUnit.Count, figures.fallbacks)
    if figures.hosts >= _ENOUGH_HOSTS:
        # Reused bytes count too: for a small change, the piece lists alone may be half of the bytes transferred.
        delivered = figures.origin_bytes + figures.peer_bytes + figures.reused_bytes
        metrics.add_metric("SwarmOriginShare", MetricUnit.Percent, 100 * figures.origin_bytes / max(1, delivered))
    metrics.flush_metrics()
