"""How often the agent polls its inbox. With a WebSocket it is notified, and polls only to renew URLs; without one it
polls every few minutes, and more often while there is work.

A long poll occupies a Lambda function while it waits: a fleet in long polls would keep one function running per host.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tidegate_client.agent.backoff import Backoff

ACTIVE_SECONDS = 60.0
# While transfers run, a long poll returns at once with the same list: pause between polls.
SHORTEST_ROUND, LONGEST_ROUND = 1.0, 5.0
# Without a WebSocket. A Job waits ten minutes for its hosts, so this is often enough.
FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND = 5.0, 120.0
# With a WebSocket. A URL is valid for fifteen minutes; each new connection, every two hours, causes a poll too.
PUSHED_ROUND, PUSHED_IDLE_ROUND = 60.0, 4 * 3600.0


@dataclass(slots=True)
class Pace:
    """The pauses between polls. `now` is the monotonic clock."""

    longest_wait: int
    active_until: float
    _unchanged: Backoff = field(default_factory=lambda: Backoff(SHORTEST_ROUND, LONGEST_ROUND))
    _idle: Backoff = field(default_factory=lambda: Backoff(FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND))

    def wait(self, now: float, *, pushed: bool = False) -> int:
        """Seconds that the next long poll should wait."""
        return self.longest_wait if now < self.active_until and not pushed else 0

    def pause(self, now: float, *, listed: bool, new: bool, pushed: bool = False) -> float:
        """Seconds from the last poll to the next. `listed`: the inbox had entries; `new`: some were new."""
        if pushed:
            self._idle.reset()
            self._unchanged.reset()
            longest = PUSHED_ROUND if listed else PUSHED_IDLE_ROUND
            return random.uniform(longest / 2, longest)  # noqa: S311
        if listed:
            self.active_until = now + ACTIVE_SECONDS
            self._idle.reset()
        if new or not listed:
            self._unchanged.reset()
        if new:
            return 0.0
        if not listed and now >= self.active_until:
            return self._idle.next()
        return self._unchanged.next()
