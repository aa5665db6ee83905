"""Reports this host's site and peer addresses to the API: at the start, on change, and every hour."""

from __future__ import annotations

import logging
import threading
import time

from tidegate_client.agent.backoff import Backoff
from tidegate_client.client import Client
from tidegate_client.errors import Invalid, NotFound, TidegateError
from tidegate_client.models import Presence
from tidegate_client.swarm.host import SwarmHost

log = logging.getLogger("tidegate.agent")

REPORT_EVERY = 3600.0
CHECK_EVERY = 5.0


class PresenceReporter:
    def __init__(self, client: Client, agent_id: str, swarm: SwarmHost, stopping: threading.Event) -> None:
        self._client = client
        self._agent_id = agent_id
        self._swarm = swarm
        self._stopping = stopping
        self._backoff = Backoff(longest=300.0)

    def run(self) -> None:
        reported: Presence | None = None
        due = 0.0
        while not self._stopping.is_set():
            presence = self._swarm.presence()
            pause = CHECK_EVERY
            if presence != reported or time.monotonic() >= due:
                try:
                    self._client.agents.tell_presence(self._agent_id, presence)
                except (Invalid, NotFound) as error:
                    # Wrong addresses, or an API without swarms: try again in an hour.
                    log.warning(
                        "the API refuses this host's peer addresses, next attempt in an hour: %s",
                        error,
                    )
                    reported, due = presence, time.monotonic() + REPORT_EVERY
                except TidegateError as error:
                    pause = self._backoff.next()
                    log.warning("reporting this host's peer addresses failed, next attempt in %.1f s: %s", pause, error)
                else:
                    self._backoff.reset()
                    reported, due = presence, time.monotonic() + REPORT_EVERY
            self._stopping.wait(pause)
