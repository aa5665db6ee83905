"""Pushes a notice to all WebSocket clients that watch the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.common.ids import Clock
from tidegate.common.slices import slices
from tidegate.notifications.notice import followed_id, is_over, kind_of
from tidegate.notifications.websocket import RecordLookup
from tidegate.notifications.websocket_messages import CONNECTION_SECONDS, WatchEntry, message
from tidegate.notifications.websocket_sender import WebSocketSender
from tidegate.notifications.websocket_store import ConnectionStore, WatchStore

# If more clients watch Tasks of a Job, they are told of ends only, not of progress: each Task costs reads.
_FOLLOWERS_TOLD_PROGRESS = 50
_FOLLOWERS_TOGETHER = 100


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
        """Takes a message of the notifications topic. Returns how many clients were told."""
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
        told = self._tell([(watch.connection_id, text) for watch in own], own if over else [])
        done = len(own) if over else 0
        if over or len(followers) <= _FOLLOWERS_TOLD_PROGRESS:
            # Each portion is finished before the next is read, so that a repeated run continues after it.
            for portion in slices(followers, _FOLLOWERS_TOGETHER):
                records = self._records.find_many(project_id, [watch.record_id for watch in portion])
                states = [(watch, *self._state(watch, records.get(watch.record_id))) for watch in portion]
                ended = [watch for watch, _, is_done in states if is_done]
                told += self._tell([(watch.connection_id, answer) for watch, answer, _ in states if answer], ended)
                done += len(ended)
        if done == len(watches):
            self._watches.unmark(project_id, record_id)
        return told

    def _tell(self, messages: list[tuple[str, str]], done: Sequence[WatchEntry]) -> int:
        """Sends the messages, then removes the watches that are done. Returns how many clients were told."""
        gone = self._outgoing.send(messages)
        for connection_id in gone:
            self._connections.remove(connection_id)
        if done:
            self._watches.remove(done)
        return sum(connection_id not in gone for connection_id, _ in messages)

    def _state(self, watch: WatchEntry, record: dict[str, Any] | None) -> tuple[str | None, bool]:
        """(message about the watched record, whether the watch is done)."""
        if record is None:
            return None, True
        shown = message(kind_of(watch.record_id, record), record)
        if is_over(record.get("status")):
            return shown, True
        followed = followed_id(watch.record_id, record)
        if followed == watch.followed_id:
            return shown, False
        # The Task was moved to the next window's Job: the watch moves with it.
        moved = WatchEntry(watch.project_id, followed, watch.record_id, watch.connection_id)
        self._watches.add(moved, int(self._clock().timestamp()) + CONNECTION_SECONDS)
        return shown, True
