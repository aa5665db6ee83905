"""Limits a project's requests per second without a table call for each request.

Every warm function counts for itself. At each 20th request of a limited project it registers that it serves the
project, learns how many other functions do, and allows its part of the rate. So the limit is approximate: in a burst
over N functions, each may let up to 40 requests pass before it knows of the others, and a load that is spread
unevenly gets less than the whole rate.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.common.token_bucket import TokenBucket
from tidegate.errors import RateLimited

REQUESTS_PER_SYNC = 20
WINDOW_SECONDS = 10
_PROJECTS_KEPT = 1000

# (project, window, function) → how many functions served the project in that window so far; 0 if that is unknown.
Register = Callable[[str, int, str], int]


@dataclass(slots=True)
class _Share:
    bucket: TokenBucket
    seen: int = 0
    window: int = 0
    peers: int = 1
    peers_before: int = 1


class RateLimiter:
    def __init__(self, register: Register) -> None:
        self._register = register
        self._name = uuid.uuid4().hex
        self._shares: dict[str, _Share] = {}

    def require(self, project_id: str, rate: float, now: float) -> None:
        """RateLimited if this function's part of the project's rate is used up."""
        if project_id not in self._shares and len(self._shares) >= _PROJECTS_KEPT:
            self._shares.clear()
        share = self._shares.setdefault(project_id, _Share(TokenBucket(rate, now, burst_seconds=1)))
        share.seen += 1
        if share.seen % REQUESTS_PER_SYNC == 0:
            self._learn_peers(project_id, share, now)
        part = rate / max(share.peers, share.peers_before)
        if part != share.bucket.rate:
            share.bucket.change_rate(part, now)
        wait = share.bucket.take(now)
        if wait > 0:
            raise RateLimited(
                f"the project's quota requests_per_s is {rate:g}: send fewer requests, or ask an admin to raise it",
                retry_after=wait,
            )

    def _learn_peers(self, project_id: str, share: _Share, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != share.window:
            share.peers_before = share.peers if window == share.window + 1 else 1
            share.window, share.peers = window, 1
        share.peers = self._register(project_id, window, self._name) or share.peers
