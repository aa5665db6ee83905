"""How often the agent asks its inbox. With a connection it is told, and asks only to renew links; without one it
asks now and then, and more often while there is work about.

A long poll holds a function for as long as it waits: a fleet that waited would hold, and pay for, one each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tidegate_client.agent.backoff import Backoff

LIVELY_SECONDS = 60.0
# While transfers run, the inbox answers at once with the same list: do not ask all the time.
SHORTEST_ROUND, LONGEST_ROUND = 1.0, 5.0
# Without a connection. A Job waits ten minutes for its hosts, so this is often enough.
FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND = 5.0, 120.0
# With one. A link lasts fifteen minutes; each new connection, every two hours, brings a poll too.
PUSHED_ROUND, PUSHED_IDLE_ROUND = 60.0, 4 * 3600.0


@dataclass(slots=True)
class Pace:
    """`now` is monotonic seconds."""

    longest_wait: int
    lively_until: float
    _same: Backoff = field(default_factory=lambda: Backoff(SHORTEST_ROUND, LONGEST_ROUND))
    _idle: Backoff = field(default_factory=lambda: Backoff(FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND))

    def wait(self, now: float, *, pushed: bool = False) -> int:
        """Seconds of the long poll to ask for."""
        return self.longest_wait if now < self.lively_until and not pushed else 0

    def pause(self, now: float, *, listed: bool, new: bool, pushed: bool = False) -> float:
        """Seconds from the last poll to the next. `listed`: the inbox had entries; `new`: some were new."""
        if pushed:
            self._idle.reset()
            self._same.reset()
            longest = PUSHED_ROUND if listed else PUSHED_IDLE_ROUND
            return random.uniform(longest / 2, longest)  # noqa: S311
        if listed:
            self.lively_until = now + LIVELY_SECONDS
            self._idle.reset()
        if new or not listed:
            self._same.reset()
        if new:
            return 0.0
        if not listed and now >= self.lively_until:
            return self._idle.next()
        return self._same.next()
