"""The agent's WebSocket, over which the API notifies it of new transfers, so that it need not poll.

While idle it costs one small message every nine and a half minutes, since API Gateway closes a connection that is
silent for ten, and a new connection every two hours, the longest that API Gateway allows.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tidegate_client.agent.backoff import Backoff
from tidegate_client.client import Client
from tidegate_client.errors import TidegateError
from tidegate_client.socket import MessageTooBig, NoSocketLibrary, Socket, SocketFailed

log = logging.getLogger("tidegate.agent")

BEAT_SECONDS = 570.0
# A fleet that lost its connections reconnects over this time: API Gateway accepts 500 new ones a second.
FIRST_PAUSE, LONGEST_PAUSE, LEAST_PAUSE = 30.0, 300.0, 0.05
LISTEN_SECONDS = 5.0
# As long as API Gateway waits for its function.
CONNECT_SECONDS = 30.0
# How long the answer to the first ping may take, with cold functions.
PING_ANSWER_SECONDS = 20.0
# After a connection that lasted this long, the next one is not tested with a ping.
TRUSTED_AFTER_SECONDS = 3600.0


class Push:
    """Holds the WebSocket. `trigger_poll` is called on each notification and new connection.

    The host's inventory is sent with the connection request: a message of its own would cost more."""

    def __init__(
        self,
        client: Client,
        inventory: Callable[[], dict[str, Any]],
        trigger_poll: Callable[..., None],
        stopping: threading.Event,
        *,
        proxy: str | None = None,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._client = client
        self._inventory = inventory
        self._trigger_poll = trigger_poll
        self._stopping = stopping
        self._proxy = proxy
        self._backoff = Backoff(first_pause, LONGEST_PAUSE, least=LEAST_PAUSE)
        self._trusted = False
        self.connected = False
        self.connections = 0

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._use_connection()
            except NoSocketLibrary:
                log.warning(
                    "websocket-client is not installed: this host polls, and receives new files up to two minutes "
                    "later; install it to be notified at once"
                )
                return
            except MessageTooBig as error:
                # The next connection would be closed the same way.
                self.connected = False
                self._trigger_poll(0.0, again=False)
                log.warning("the WebSocket cannot be used, this host polls until the agent is restarted: %s", error)
                return
            except TidegateError as error:
                was_connected, self.connected = self.connected, False
                pause = self._backoff.next()
                level = logging.INFO if was_connected else logging.WARNING
                log.log(level, "no WebSocket, this host polls; next attempt in %.0f s: %s", pause, error)
                if was_connected:
                    # Wake the poller: its pauses are hours while there is a connection.
                    self._trigger_poll(pause, again=False)
                self._stopping.wait(pause)
            finally:
                self.connected = False

    def _use_connection(self) -> None:
        with contextlib.closing(
            Socket(self._client, None, timeout=CONNECT_SECONDS, proxy=self._proxy, host_facts=self._inventory())
        ) as socket:
            began = time.monotonic()
            self._test_connection(socket)
            self.connected = True
            self.connections += 1
            self._backoff.reset()
            log.info("WebSocket connected: the API notifies this host of new files")
            # Notifications may have been missed while there was no connection.
            self._trigger_poll(0.0, again=False)
            beat_at = time.monotonic() + BEAT_SECONDS * random.uniform(0.9, 1.0)  # noqa: S311
            while not self._stopping.is_set():
                self._trusted = time.monotonic() - began >= TRUSTED_AFTER_SECONDS
                message = socket.receive(min(LISTEN_SECONDS, max(0.01, beat_at - time.monotonic())))
                self._handle(message)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + BEAT_SECONDS
                    socket.beat()

    def _handle(self, message: dict[str, Any] | None) -> None:
        if message is not None and message.get("type") == "transfers":
            self._trigger_poll(_seconds(message.get("within_s")))

    def _test_connection(self, socket: Socket) -> None:
        """Tests a new connection with a ping: a proxy may open it and pass nothing on.

        A host that relied on such a connection would poll every few hours and get no notification."""
        if self._trusted:
            return
        socket.ping()
        deadline = time.monotonic() + PING_ANSWER_SECONDS
        while not self._stopping.is_set():
            message = socket.receive(min(LISTEN_SECONDS, max(0.01, deadline - time.monotonic())))
            if message is not None:
                self._handle(message)
                return
            if time.monotonic() >= deadline:
                raise SocketFailed(
                    f"the WebSocket opens, but a ping got no answer within {PING_ANSWER_SECONDS:.0f} s: "
                    "does a proxy block it?"
                )


def _seconds(value: object) -> float:
    return min(float(value), 600.0) if isinstance(value, (int, float)) and value > 0 else 0.0
