"""Plans the swarm of a Job when it is dispatched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.common.ids import Clock
from tidegate.distribution.model import Job
from tidegate.distribution.store.presences import PresenceStore, SwarmSettingsStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.swarm.plan import FEWEST_MEMBERS, Member, Seat, plan, terms
from tidegate.distribution.swarm.presence import Presence
from tidegate.files.contents import ContentStore
from tidegate.files.pieces import SMALLEST_FILE


class JobSwarm:
    """The swarm of one Job. A host without a seat fetches from S3."""

    def __init__(self, seats: dict[str, Seat], key: bytes, shared: dict[str, Any]) -> None:
        self._seats = seats
        self._key = key
        self._shared = shared

    def terms_of(self, agent_id: str) -> dict[str, Any] | None:
        seat = self._seats.get(agent_id)
        return terms(seat, self._key) | self._shared if seat else None


NO_SWARM = JobSwarm({}, b"", {})


class SwarmPlanner:
    """Plans one swarm for the whole Job: one per transfer would fetch the file from S3 for each of them."""

    def __init__(
        self,
        targets: TargetStore,
        contents: ContentStore,
        presences: PresenceStore,
        settings: SwarmSettingsStore,
        clock: Clock,
    ) -> None:
        self._targets = targets
        self._contents = contents
        self._presences = presences
        self._settings = settings
        self._clock = clock
        # The plan of the last Job: its transfers are created one after another. Projects may share Job ids.
        self._last: tuple[tuple[str, str], JobSwarm] | None = None

    def swarm_of(self, job: Job, size: int) -> JobSwarm:
        place = (job.project_id, job.key)
        if self._last is None or self._last[0] != place:
            self._last = place, self._plan(job, size)
        return self._last[1]

    def _plan(self, job: Job, size: int) -> JobSwarm:
        too_small = size < SMALLEST_FILE or job.counts.total < FEWEST_MEMBERS
        if too_small or job.spec.swarm == "off" or job.swarm_key is None:
            return NO_SWARM
        settings = self._settings.get(job.project_id)
        content = self._contents.get(job.project_id, job.spec.file_signature) if settings.enabled else None
        if content is None or content.pieces_sha256 is None:
            return NO_SWARM
        now = self._clock().timestamp()
        shards = self._targets.shards(job, range(job.shard_count or 0))
        agents = (target.agent_id for shard in shards for target in shard.states)
        present = self._presences.get_many(job.project_id, agents, now)
        key = bytes.fromhex(job.swarm_key)
        seats = plan(_members(present, settings.free_sites), job.key, key)
        shared = {
            "piece_size": content.piece_size,
            "pieces_sha256": content.pieces_sha256,
            "blocks_sha256": content.blocks_sha256,
            "dispatched_at": round(now, 3),
        }
        return JobSwarm(seats, key, shared)


def _members(present: Iterable[Presence], free_sites: Iterable[str]) -> Iterable[Member]:
    """The hosts of the plan, except at sites that S3 serves for free. Hosts that peers cannot reach only fetch."""
    free = set(free_sites)
    for one in present:
        if one.site not in free:
            yield Member(one.agent_id, one.site, one.zone, one.listen if one.reached else (), one.pin)
