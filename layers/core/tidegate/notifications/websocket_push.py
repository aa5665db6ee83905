"""Pushes a notice to all WebSocket clients that watch the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegate.common.ids import Clock
from tidegate.common.slices import slices
from tidegate.errors import Busy
from tidegate.notifications.notice import followed_id, is_over, kind_of
from tidegate.notifications.websocket import RecordLookup
from tidegate.notifications.websocket_messages import CONNECTION_SECONDS, WatchEntry, message
from tidegate.notifications.websocket_sender import WebSocketSender
from tidegate.notifications.websocket_store import ConnectionStore, WatchStore

# If more clients watch Tasks of a Job, they are sent ends only, not progress, because each Task costs reads.
_FOLLOWERS_SENT_PROGRESS = 50
_FOLLOWERS_TOGETHER = 100
_CLIENTS_TOGETHER = 500

# (watch, message to send, whether the watch is done after it)
_Update = tuple[WatchEntry, str | None, bool]


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
        """Takes a message of the notifications topic. Returns how many messages were sent.

        Busy if the end of a record did not reach a client: its watch is kept, so Lambda's retry sends the message.
        """
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
        sent = removed = failed = 0
        # Each portion is finished before the next is read, so that a repeated run continues after it.
        for portion in self._portions(project_id, own, followers, text, over):
            delivered, done = self._send(portion)
            sent += delivered
            removed += done
            failed += sum(is_done for _, _, is_done in portion) - done
        if removed == len(watches):
            self._watches.unmark(project_id, record_id)
        if failed:
            raise Busy(
                f"{failed} of {len(watches)} clients did not get the end of {record_id}: Lambda runs the push again"
            )
        return sent

    def _portions(
        self, project_id: str, own: Sequence[WatchEntry], followers: Sequence[WatchEntry], text: str, over: bool
    ) -> Iterator[list[_Update]]:
        for portion in slices(own, _CLIENTS_TOGETHER):
            yield [(watch, text, over) for watch in portion]
        if over or len(followers) <= _FOLLOWERS_SENT_PROGRESS:
            for portion in slices(followers, _FOLLOWERS_TOGETHER):
                records = self._records.find_many(project_id, [watch.record_id for watch in portion])
                yield [(watch, *self._state(watch, records.get(watch.record_id))) for watch in portion]

    def _send(self, updates: list[_Update]) -> tuple[int, int]:
        """(how many messages were sent, how many watches were done and are removed)."""
        messages = [(watch.connection_id, text) for watch, text, _ in updates if text]
        gone, failed = self._outgoing.send(messages)
        for connection_id in gone:
            self._connections.remove(connection_id)
        done = [watch for watch, _, is_done in updates if is_done and watch.connection_id not in failed]
        if done:
            self._watches.remove(done)
        return sum(connection_id not in gone | failed for connection_id, _ in messages), len(done)

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
