"""What a host learns about reaching others: whether peers come in, and whether it is alone."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("tidegate.agent")

ALONE_SECONDS = 3600.0
_FEWEST_TO_BE_ALONE = 4
_UNREACHED_SWARMS = 2


class Reach:
    def __init__(self) -> None:
        self._alone_until = 0.0
        self._unreached = 0
        self._unreached_since = 0.0

    @property
    def is_alone(self) -> bool:
        """No peer answered lately: the time that a swarm would cost is saved for an hour."""
        return time.monotonic() < self._alone_until

    @property
    def is_reached(self) -> bool:
        """False if no peer came in during the last two swarms. Firewalls change: after an hour it is tried again."""
        if self._unreached >= _UNREACHED_SWARMS and time.monotonic() > self._unreached_since + ALONE_SECONDS:
            self._unreached = 0
        return self._unreached < _UNREACHED_SWARMS

    def was_alone(self, peers: int) -> None:
        if peers >= _FEWEST_TO_BE_ALONE:
            log.warning("no peer could be reached: for an hour files come straight from the store")
            self._alone_until = time.monotonic() + ALONE_SECONDS

    def swarm_ended(self, *, reached: bool, met_anyone: bool) -> None:
        if reached:
            self._unreached = 0
        elif met_anyone:
            self._unreached += 1
            self._unreached_since = time.monotonic()
