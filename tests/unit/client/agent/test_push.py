"""The agent's WebSocket: notifications, inventory, heartbeats and lost connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.support.patience import idle_clock, until
from tests.unit.client.fakes import AgentApi
from tidegate_client import rates as pace
from tidegate_client.agent import inbox as push
from tidegate_client.agent import threads as poll_trigger
from tidegate_client.agent.inbox import Push
from tidegate_client.agent.threads import PollTrigger
from tidegate_client.errors import ApiError, NotFound
from tidegate_client.rates import Backoff, Pace
from tidegate_client.watching import Socket

CONTENT = b"pushed " * 1000


@dataclass
class SocketServer:
    """A fake API Gateway. `ticket` replaces the API's tickets."""

    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    open: list[ServerConnection] = field(default_factory=list)
    connected: int = 0
    refusal: ApiError | None = None
    # Behaves like a proxy that opens the connection and passes no message back.
    mute: bool = False

    def handle(self, connection: ServerConnection) -> None:
        self.connected += 1
        self.open.append(connection)
        assert connection.request is not None
        self.queries.append(dict(parse_qsl(urlsplit(connection.request.path).query)))
        try:
            for text in connection:
                self.received.append(json.loads(text))
                if self.received[-1] == {"action": "ping"} and not self.mute:
                    connection.send('{"type":"pong","data":{}}')
        except ConnectionClosed:
            pass
        finally:
            self.open.remove(connection)

    def ticket(self) -> dict[str, str]:
        if self.refusal:
            raise self.refusal
        return {"ticket": "t", "ws_url": self.url, "expires_at": ""}

    def send(self, **message: Any) -> None:
        for connection in list(self.open):
            connection.send(json.dumps(message))


@pytest.fixture
def server() -> Iterator[SocketServer]:
    made = SocketServer()
    with serve(made.handle, "127.0.0.1", 0) as listening:
        made.url = f"ws://127.0.0.1:{listening.socket.getsockname()[1]}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield made
        listening.shutdown()
        thread.join()


def client_of(server: SocketServer) -> Any:
    class Client:
        class operations:
            ticket = staticmethod(server.ticket)

    return Client()


class RunningPush:
    def __init__(self, server: SocketServer, inventory: dict[str, Any] | None = None) -> None:
        self.wakeups: list[float] = []
        self.asks: list[float] = []
        self.stopping = threading.Event()

        facts = inventory or {"version": "1.0", "free_bytes": 7}
        self.push = Push(
            client_of(server),
            lambda: facts,
            self._trigger_poll,
            self.stopping,
            first_pause=0.05,
            on_new_goals=self.asks.append,
        )
        self.thread = threading.Thread(target=self.push.run)
        self.thread.start()

    def _trigger_poll(self, within: float, *, again: bool = True) -> None:
        self.wakeups.append(within)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def running(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningPush]:
    monkeypatch.setattr(push, "LISTEN_SECONDS", 0.05)
    made = RunningPush(server)
    until(lambda: server.queries)
    yield made
    made.stop()


def test_new_connection_sends_the_inventory_and_polls(server: SocketServer, running: RunningPush) -> None:
    assert server.queries == [{"ticket": "t", "version": "1.0", "free_bytes": "7"}]
    until(lambda: running.wakeups == [0.0])
    assert running.push.connected


def test_notification_of_transfers_wakes_the_poller(server: SocketServer, running: RunningPush) -> None:
    until(lambda: running.wakeups)
    server.send(type="transfers")
    server.send(type="transfers", within_s=20)
    server.send(type="something else")

    until(lambda: len(running.wakeups) == 3)
    assert running.wakeups == [0.0, 0.0, 20.0]


def test_notification_of_goals_lets_the_host_ask_and_not_poll(server: SocketServer, running: RunningPush) -> None:
    until(lambda: running.wakeups)
    server.send(type="transfers", releases=True, within_s=20)
    server.send(type="transfers", releases=True)
    server.send(type="transfers")

    until(lambda: len(running.wakeups) == 2)
    assert running.asks == [20.0, 0.0]


@pytest.mark.parametrize("invalid", ["soon", -5, None, {}])
def test_invalid_spread_is_ignored(server: SocketServer, running: RunningPush, invalid: object) -> None:
    until(lambda: running.wakeups)
    server.send(type="transfers", within_s=invalid)

    until(lambda: len(running.wakeups) == 2)
    assert running.wakeups[1] == 0.0


def test_lost_connection_is_reopened(server: SocketServer, running: RunningPush) -> None:
    until(lambda: running.push.connected)
    for connection in list(server.open):
        connection.close()

    until(lambda: server.connected == 2)
    until(lambda: running.push.connected)


def test_api_without_tickets_for_agents_leaves_the_host_polling(server: SocketServer) -> None:
    server.refusal = NotFound(404, "route_not_found", "no such route")
    running = RunningPush(server)
    try:
        until(lambda: running.push._backoff.failures >= 2)
        assert not running.push.connected
        assert running.wakeups == []
        assert running.thread.is_alive()
    finally:
        running.stop()


def test_idle_connection_sends_heartbeats(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BEAT_SECONDS", 0.1)
    running = RunningPush(server)
    try:
        until(lambda: server.received.count({"action": "beat"}) >= 3)
    finally:
        running.stop()


def test_connection_without_an_answer_leaves_the_host_polling(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "PING_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(push, "LISTEN_SECONDS", 0.05)
    server.mute = True
    running = RunningPush(server)
    try:
        until(lambda: server.connected >= 3)
        assert not running.push.connected
        assert running.push.connections == 0
        assert running.wakeups == [], "the poller is not woken"

        server.mute = False
        until(lambda: running.push.connected)
    finally:
        running.stop()


def test_connection_after_a_long_one_is_not_tested(server: SocketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host opens 360 connections a month; two more messages for each would cost money."""
    monkeypatch.setattr(push, "LISTEN_SECONDS", 0.02)
    monkeypatch.setattr(push, "TRUSTED_AFTER_SECONDS", 0.05)
    running = RunningPush(server)
    try:
        until(lambda: running.push._trusted)
        for connection in list(server.open):
            connection.close()
        until(lambda: running.push.connections == 2)
        assert server.received.count({"action": "ping"}) == 1
    finally:
        running.stop()


def test_connection_after_a_short_one_is_tested_again(server: SocketServer, running: RunningPush) -> None:
    until(lambda: running.push.connected)
    for connection in list(server.open):
        connection.close()
    until(lambda: running.push.connections == 2)

    assert server.received.count({"action": "ping"}) == 2


def test_fleet_reconnects_spread_over_half_a_minute() -> None:
    pauses = [Backoff(push.FIRST_PAUSE, push.LONGEST_PAUSE, least=push.LEAST_PAUSE).next() for _ in range(2000)]

    assert max(pauses) <= 30
    assert all(sum(second <= pause < second + 1 for pause in pauses) < 130 for second in range(30))


def test_connection_uses_tcp_keepalive(server: SocketServer) -> None:
    """A NAT drops a silent connection after a few minutes, before the next heartbeat."""
    made = Socket(client_of(server), None)
    try:
        raw = made._connection.sock
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 120
    finally:
        made.close()


def test_poll_trigger_repeats_until_a_poll_lists_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_trigger, "FOLLOW_UP_SECONDS", (0.05, 0.1))
    trigger = PollTrigger()
    threading.Timer(0.02, trigger.trigger).start()

    assert [trigger.sleep(5), trigger.sleep(5)] == [True, True]
    trigger.found_new()
    assert not trigger.sleep(0.15)


@pytest.mark.parametrize("slow", [True, False])
def test_wakeups_during_a_slow_successful_poll_are_dropped(slow: bool) -> None:
    """Otherwise an overloaded API would get a poll for each notification that it repeated."""
    trigger = PollTrigger()
    trigger.trigger()
    assert trigger.sleep(1), "the first poll starts"
    trigger.trigger()
    trigger.trigger(3000.0, again=False)
    trigger.found_new(slow=slow)

    assert trigger.sleep(0.05) is not slow
    assert len(trigger._due) == 1, "a poll planned for later stays"


def test_poll_trigger_of_a_new_connection_fires_once() -> None:
    trigger = PollTrigger()
    trigger.trigger(0.0, again=False)

    assert [trigger.sleep(5), trigger.sleep(0.05)] == [True, False]


def test_connected_agent_polls_rarely_and_each_minute_while_working() -> None:
    made = Pace(20, active_until=1e9)

    assert made.wait(0, pushed=True) == 0
    assert 7200 <= made.pause(0, listed=False, new=False, pushed=True) <= 14400
    assert 30 <= made.pause(0, listed=True, new=True, pushed=True) <= 60


def test_notified_file_arrives_within_two_seconds(
    server: SocketServer, api: AgentApi, start_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "FIRST_IDLE_ROUND", 100.0)
    monkeypatch.setattr("tidegate_client.resources.operations.Operations.ticket", lambda _: server.ticket())
    start_agent(push=True, wait=0)
    until(lambda: server.queries and len(api.polls) >= 2)
    time.sleep(0.3)
    polls = len(api.polls)
    time.sleep(0.3)
    assert len(api.polls) == polls

    began = idle_clock()
    transfer = api.add("f", CONTENT)
    server.send(type="transfers")
    api.wait_for(transfer)

    assert idle_clock() - began < 2


def test_agent_that_is_done_does_not_poll_until_it_is_told(
    server: SocketServer, api: AgentApi, start_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each transfer would cost another call half a minute after its result, and each repeated message three."""
    monkeypatch.setattr(pace, "PUSHED_ROUND", 0.4)
    monkeypatch.setattr(poll_trigger, "FOLLOW_UP_SECONDS", (0.2, 0.4))
    monkeypatch.setattr("tidegate_client.resources.operations.Operations.ticket", lambda _: server.ticket())
    start_agent(push=True, wait=0)
    until(lambda: server.open)
    polls = polls_in_the_end(api)

    transfer = api.add("f", CONTENT)
    server.send(type="transfers")
    api.wait_for(transfer)
    assert polls_in_the_end(api) == polls + 1

    server.send(type="transfers", repeat=True)
    until(lambda: len(api.polls) > polls + 1)
    assert polls_in_the_end(api) == polls + 2


def polls_in_the_end(api: AgentApi) -> int:
    """How many polls there were when no more came for two seconds."""
    polls = -1
    while polls != len(api.polls):
        polls = len(api.polls)
        time.sleep(2.0)
    return polls


def test_transfer_that_runs_is_polled_for_each_minute(
    server: SocketServer, api: AgentApi, start_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its URL may expire, and it may have been cancelled."""
    monkeypatch.setattr(pace, "PUSHED_ROUND", 0.2)
    monkeypatch.setattr("tidegate_client.resources.operations.Operations.ticket", lambda _: server.ticket())
    api.store.seconds_a_chunk = 8.0
    transfer = api.add("f", CONTENT * 10)
    start_agent(push=True, wait=0)
    until(lambda: api.store.requests)
    polls = len(api.polls)
    until(lambda: len(api.polls) > polls + 2)
    api.store.seconds_a_chunk = 0.0
    api.wait_for(transfer)


def test_connection_closed_with_1009_leaves_the_host_polling(server: SocketServer, running: RunningPush) -> None:
    until(lambda: server.open and running.push.connected)
    server.open[0].close(1009, "frame too large")

    running.thread.join(5)

    assert not running.thread.is_alive()
    assert server.connected == 1
    assert not running.push.connected
    assert len(running.wakeups) == 2, "the poller is woken, since its pause is hours while there is a connection"
