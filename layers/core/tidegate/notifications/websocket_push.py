"""What happened to a record, to everyone who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.common.ids import Clock
from tidegate.notifications.notice import followed_id, is_over, kind_of
from tidegate.notifications.websocket import RecordLookup
from tidegate.notifications.websocket_messages import CONNECTION_SECONDS, WatchEntry, message
from tidegate.notifications.websocket_sender import WebSocketSender
from tidegate.notifications.websocket_store import ConnectionStore, WatchStore

# Above this, those who watch a Job's Tasks hear of their ends only: each costs reads of its own.
_FOLLOWERS_TOLD_PROGRESS = 50


class Pusher:
    def __init__(
        self,
        watches: WatchStore,
        connections: ConnectionStore,
        records: RecordLookup,
        outgoing: WebSocketSender,
        clock: Clock,
    ) -> None:
        self._watches = watches
        self._connections = connections
        self._records = records
        self._outgoing = outgoing
        self._clock = clock

    def push(self, notice: Mapping[str, Any]) -> int:
        """A notice as the topic carries it. Answers how many were told."""
        project_id, record_id = notice["project_id"], notice["record_id"]
        over = is_over(notice["status"])
        watches = self._watches.on(project_id, record_id)
        if not watches:
            if not over:
                self._watches.unmark(project_id, record_id)
            return 0
        own = [watch for watch in watches if watch.record_id == record_id]
        followers = [watch for watch in watches if watch.record_id != record_id]
        text = message(notice["type"], notice["data"])
        messages = [(watch.connection_id, text) for watch in own]
        done = list(own) if over else []
        if over or len(followers) <= _FOLLOWERS_TOLD_PROGRESS:
            for watch in followers:
                answer, ended = self._state(watch)
                messages += [(watch.connection_id, answer)] if answer else []
                done += [watch] if ended else []
        gone = self._outgoing.send(messages)
        for connection_id in gone:
            self._connections.remove(connection_id)
        if done:
            self._watches.remove(done)
        if len(done) == len(watches):
            self._watches.unmark(project_id, record_id)
        return len(messages) - len(gone)

    def _state(self, watch: WatchEntry) -> tuple[str | None, bool]:
        """A Task's own state, by its Job's notice; and whether this watch is over."""
        record = self._records.find(watch.project_id, watch.record_id)
        if record is None:
            return None, True
        shown = message(kind_of(watch.record_id, record), record)
        if is_over(record.get("status")):
            return shown, True
        followed = followed_id(watch.record_id, record)
        if followed == watch.followed_id:
            return shown, False
        # At the edge of a window a Task goes over to another Job; whoever watches it goes along.
        moved = WatchEntry(watch.project_id, followed, watch.record_id, watch.connection_id)
        self._watches.add(moved, int(self._clock().timestamp()) + CONNECTION_SECONDS)
        return shown, True
