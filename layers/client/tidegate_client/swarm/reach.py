"""Whether this host reaches its peers, and whether they reach it."""

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
        """True for an hour after a swarm in which no peer answered: the seconds of another attempt are saved."""
        return time.monotonic() < self._alone_until

    @property
    def is_reached(self) -> bool:
        """False if no peer connected to this host in its last two swarms. Reset after an hour: firewalls change."""
        if self._unreached >= _UNREACHED_SWARMS and time.monotonic() > self._unreached_since + ALONE_SECONDS:
            self._unreached = 0
        return self._unreached < _UNREACHED_SWARMS

    def was_alone(self, peers: int) -> None:
        """None of this many peers answered."""
        if peers >= _FEWEST_TO_BE_ALONE:
            log.warning("none of %d peers could be reached: for an hour this host downloads from S3 only", peers)
            self._alone_until = time.monotonic() + ALONE_SECONDS

    def swarm_ended(self, *, reached: bool, met_anyone: bool) -> None:
        """`reached`: a peer connected to this host. `met_anyone`: this host connected to a peer."""
        if reached:
            self._unreached = 0
        elif met_anyone:
            self._unreached += 1
            self._unreached_since = time.monotonic()
