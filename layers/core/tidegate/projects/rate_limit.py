"""Limits requests per second without a table call for each request: those of a project, and those of a host.

Every warm function counts for itself. At each 20th request of a limited caller it registers that it serves the
caller, learns how many other functions do, and allows its part of the rate. So the limit is approximate: in a burst
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
# Requests per second of one host's key. A busy host sends a few; one whose key was stolen must not use up the API.
AGENT_RATE = 100.0

# (caller, window, function) → how many functions served the caller in that window so far; 0 if that is unknown.
Register = Callable[[str, int, str], int]


@dataclass(frozen=True, slots=True)
class Rule:
    """What callers are limited as. `{rate}` in `refusal` is the limit.

    `burst_seconds`: how many seconds' requests may come at once. `kept`: the most callers that a function remembers.
    `forgets`: whether the count of requests begins anew in each window. Then slow callers cost no table call.
    """

    refusal: str
    burst_seconds: float
    kept: int
    forgets: bool


PROJECT = Rule(
    "the project's quota requests_per_s is {rate:g}: send fewer requests, or ask an admin to raise it",
    burst_seconds=1,
    kept=1000,
    forgets=False,
)
AGENT = Rule(
    "a host may send {rate:g} requests per second: send fewer, or many results in one request",
    burst_seconds=10,
    # All hosts of a large fleet may call the same function.
    kept=20_000,
    forgets=True,
)


@dataclass(slots=True)
class _Share:
    bucket: TokenBucket
    seen: int = 0
    seen_in: int = 0
    window: int = 0
    peers: int = 1
    peers_before: int = 1


class RateLimiter:
    def __init__(self, register: Register, rule: Rule = PROJECT) -> None:
        self._register = register
        self._rule = rule
        self._name = uuid.uuid4().hex
        self._shares: dict[str, _Share] = {}

    def require(self, caller: str, rate: float, now: float) -> None:
        """RateLimited if this function's part of the caller's rate is used up."""
        if caller not in self._shares and len(self._shares) >= self._rule.kept:
            self._shares.clear()
        share = self._shares.get(caller)
        if share is None:
            bucket = TokenBucket(rate, now, burst_seconds=self._rule.burst_seconds)
            share = self._shares[caller] = _Share(bucket)
        if self._rule.forgets:
            self._forget(share, now)
        share.seen += 1
        if share.seen % REQUESTS_PER_SYNC == 0:
            self._learn_peers(caller, share, now)
        part = rate / max(share.peers, share.peers_before)
        if part != share.bucket.rate:
            share.bucket.change_rate(part, now)
        wait = share.bucket.take(now)
        if wait > 0:
            raise RateLimited(self._rule.refusal.format(rate=rate), retry_after=wait)

    @staticmethod
    def _forget(share: _Share, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != share.seen_in:
            share.seen, share.seen_in = 0, window
        if window > share.window + 1:
            # Too long ago. A caller that has become slow would not ask again, and keep its small part for ever.
            share.peers = share.peers_before = 1

    def _learn_peers(self, caller: str, share: _Share, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != share.window:
            share.peers_before = share.peers if window == share.window + 1 else 1
            share.window, share.peers = window, 1
        share.peers = self._register(caller, window, self._name) or share.peers
