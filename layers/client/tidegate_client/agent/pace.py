"""How the agent asks its inbox: a long poll while there is work about, a short one now and then when there is none.

A long poll holds a function for as long as it waits, so a fleet that always waited would hold, and pay for, one each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_client.agent.backoff import Backoff

LIVELY_SECONDS = 60.0
# While transfers run, the inbox answers at once with the same list: do not ask all the time.
SHORTEST_ROUND, LONGEST_ROUND = 1.0, 5.0
# About a collect window: nobody who waited for one notices.
FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND = 5.0, 20.0


@dataclass(slots=True)
class Pace:
    """`now` is monotonic seconds."""

    longest_wait: int
    lively_until: float
    _same: Backoff = field(default_factory=lambda: Backoff(SHORTEST_ROUND, LONGEST_ROUND))
    _idle: Backoff = field(default_factory=lambda: Backoff(FIRST_IDLE_ROUND, LONGEST_IDLE_ROUND))

    def wait(self, now: float) -> int:
        """What the API is asked to wait for."""
        return self.longest_wait if now < self.lively_until else 0

    def pause(self, now: float, *, listed: bool, new: bool) -> float:
        """The time from the last question to the next, after an inbox that listed something, something new."""
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
