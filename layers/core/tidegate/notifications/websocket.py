"""WebSocket clients: they connect with a ticket, watch and unwatch records, and disconnect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tidegate.common.ids import Clock, iso
from tidegate.errors import DomainError, Invalid, RecordNotFound, ScopeMissing
from tidegate.notifications.notice import followed_id, is_over, kind_of
from tidegate.notifications.websocket_messages import (
    CONNECTION_SECONDS,
    MOST_WATCHES,
    ClientMessage,
    WatchEntry,
    error_message,
    id_messages,
    message,
    parse,
)
from tidegate.notifications.websocket_sender import WebSocketSender
from tidegate.notifications.websocket_store import ConnectionStore, WatchStore

Lookup = Callable[[str, str], dict[str, Any] | None]
BatchLookup = Callable[[str, Sequence[str]], dict[str, dict[str, Any]]]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TASK_PREFIX = "AsyncDownloadTask"
# Agents send exactly this text.
BEAT = '{"action":"beat"}'


class RecordLookup:
    """Finds any record by its id, whichever capability it belongs to."""

    def __init__(self, lookups: Mapping[str, Lookup], batched: Mapping[str, BatchLookup]) -> None:
        self._lookups = lookups
        self._batched = batched

    def find(self, project_id: str, record_id: str) -> dict[str, Any] | None:
        prefix = self._prefix(record_id)
        try:
            return self._lookups[prefix](project_id, record_id) if prefix is not None else None
        except RecordNotFound:
            return None

    def find_many(self, project_id: str, record_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The records that exist, by id. Reads several at once where their capability can."""
        found: dict[str, dict[str, Any]] = {}
        together: dict[str, list[str]] = defaultdict(list)
        for record_id in dict.fromkeys(record_ids):
            prefix = self._prefix(record_id)
            if prefix is not None and prefix in self._batched:
                together[prefix].append(record_id)
            elif (record := self.find(project_id, record_id)) is not None:
                found[record_id] = record
        for prefix, ids in together.items():
            found |= self._batched[prefix](project_id, ids)
        return found

    def _prefix(self, record_id: str) -> str | None:
        name = f"{_TASK_PREFIX}:" if _UUID.fullmatch(record_id) else record_id
        return next((prefix for prefix in self._lookups if name.startswith(prefix)), None)


class AgentPresence(Protocol):
    """Implemented by the fleet, which this capability may not import: it must know which hosts are connected."""

    def connected(self, project_id: str, agent_id: str, connection_id: str, about: Mapping[str, str]) -> None: ...

    def disconnected(self, project_id: str, agent_id: str, connection_id: str) -> None: ...


class WebSocketClients:
    def __init__(
        self,
        connections: ConnectionStore,
        watches: WatchStore,
        records: RecordLookup,
        outgoing: WebSocketSender,
        key_is_active: Callable[[str], bool],
        presence: Callable[[], AgentPresence],
        clock: Clock,
    ) -> None:
        self._presence = presence
        self._connections = connections
        self._watches = watches
        self._records = records
        self._outgoing = outgoing
        self._key_is_active = key_is_active
        self._clock = clock

    def connect(self, connection_id: str, ticket: str, about: Mapping[str, str]) -> bool:
        """False if the ticket or its key is not valid. `about` is the request's query: an agent's inventory."""
        now = self._clock().timestamp()
        holder = self._connections.redeem(ticket, connection_id, now) if ticket else None
        if holder is None:
            return False
        # Stored before the key is checked: a concurrent revocation either finds the connection or is seen here.
        self._connections.add(connection_id, holder, self._expiry())
        if not self._key_is_active(holder.key_record_id):
            self._connections.remove(connection_id)
            return False
        if holder.agent_id:
            self._presence().connected(holder.project_id, holder.agent_id, connection_id, about)
        return True

    def disconnect(self, connection_id: str) -> None:
        holder = self._connections.holder_of(connection_id)
        if holder and holder.agent_id:
            # One write only: the connection's other records expire by themselves.
            self._presence().disconnected(holder.project_id, holder.agent_id, connection_id)
            return
        self._connections.remove(connection_id)

    def receive(self, connection_id: str, text: str) -> None:
        """Handles a client's message. Answers and errors are sent over the connection."""
        if text == BEAT:
            # API Gateway answers beats itself; this is for a deployment that does not have that route yet.
            return
        holder = self._connections.holder_of(connection_id)
        if holder is None:
            answers = [error_message(RecordNotFound("this connection is unknown: connect again with a new ticket"))]
        elif not self._key_is_active(holder.key_record_id):
            self._outgoing.close([connection_id])
            self._connections.remove(connection_id)
            return
        else:
            try:
                received = parse(text)
                if received.action != "ping" and not holder.may_watch:
                    raise ScopeMissing(
                        "this connection may not watch records: get its ticket with a key that has the scope read"
                    )
                answers = self._answers(holder.project_id, connection_id, received)
            except DomainError as error:
                answers = [error_message(error)]
        for answer in answers:
            if self._outgoing.send([(connection_id, answer)]).gone:
                self._connections.remove(connection_id)
                return

    def _answers(self, project_id: str, connection_id: str, received: ClientMessage) -> list[str]:
        if received.action == "ping":
            return [message("pong", {"at": iso(self._clock())})]
        if received.action == "unwatch":
            for record_id in received.record_ids:
                self._unwatch(project_id, connection_id, record_id)
            return id_messages("unwatched", received.record_ids)
        if not self._connections.count_watches(connection_id, len(received.record_ids), MOST_WATCHES):
            raise Invalid(
                f"a connection watches at most {MOST_WATCHES} records: unwatch some, or open another connection"
            )
        found = [self._watch(project_id, connection_id, record_id) for record_id in received.record_ids]
        watching = [record_id for record_id, answer in zip(received.record_ids, found, strict=True) if answer is None]
        acknowledged = id_messages("watching", watching) if watching else []
        return acknowledged + [answer for answer in found if answer is not None]

    def _watch(self, project_id: str, connection_id: str, record_id: str) -> str | None:
        """None if the record is watched now; otherwise the message to send at once (it has ended, or is unknown)."""
        record = self._records.find(project_id, record_id)
        while record is not None:
            if is_over(record.get("status")):
                return message(kind_of(record_id, record), record)
            followed = followed_id(record_id, record)
            self._watches.add(WatchEntry(project_id, followed, record_id, connection_id), self._expiry())
            # It may have ended, or its Task may have moved to another Job, before the watch was stored.
            record = self._records.find(project_id, record_id)
            if record is not None and not is_over(record["status"]) and followed_id(record_id, record) == followed:
                return None
        return error_message(RecordNotFound(f"this project has no record {record_id[:200]}"), task_id=record_id)

    def _unwatch(self, project_id: str, connection_id: str, record_id: str) -> None:
        record = self._records.find(project_id, record_id)
        followed = followed_id(record_id, record) if record else record_id
        self._watches.remove([WatchEntry(project_id, followed, record_id, connection_id)])

    def _expiry(self) -> int:
        return int(self._clock().timestamp()) + CONNECTION_SECONDS
