"""Tickets, connections, and who watches which record over which connection."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put, put_new, update
from tidegate.notifications.websocket_messages import WatchEntry


class ConnectionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add_ticket(self, ticket: str, project_id: str, expires_at: int) -> None:
        self._table.write(put_new(keys.ticket(ticket) | {"project_id": project_id, "expires_at": expires_at}))

    def redeem(self, ticket: str, now: float) -> str | None:
        """The ticket's project, for the first who asks in time. TTL deletes late, so the time is checked too."""
        try:
            taken = self._table.write(
                delete(keys.ticket(ticket), "attribute_exists(#pk) AND #expires_at > :now", now=now)
            )
        except ConditionFailed:
            return None
        return str(taken["project_id"])

    def add(self, connection_id: str, project_id: str, expires_at: int) -> None:
        self._table.write(put(keys.connection(connection_id) | {"project_id": project_id, "expires_at": expires_at}))

    def project_of(self, connection_id: str) -> str | None:
        item = self._table.get(keys.connection(connection_id))
        return str(item["project_id"]) if item else None

    def remove(self, connection_id: str) -> None:
        of_it = self._table.query_all(keys.watches_of_connection(connection_id), index="gsi1", project=("pk", "sk"))
        watches = [{"pk": item["pk"], "sk": item["sk"]} for item in of_it]
        self._table.batch_delete([keys.connection(connection_id), *watches])


class WatchStore:
    """A record that anyone watches has a marker item: its absence is what makes progress cheap."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def is_watched(self, project_id: str, record_id: str) -> bool:
        return self._table.get(keys.watched(project_id, record_id)) is not None

    def take_turn(self, project_id: str, record_id: str, now: float, interval: float) -> bool:
        """True for one caller an interval, across all functions."""
        turn = update(
            keys.watched(project_id, record_id),
            {"told_at": now},
            condition="attribute_exists(#pk) AND (attribute_not_exists(#told_at) OR #told_at <= :before)",
            before=now - interval,
        )
        try:
            self._table.write(turn)
        except ConditionFailed:
            return False
        return True

    def add(self, watch: WatchEntry, expires_at: int) -> None:
        """Two plain puts: the marker first, so that no watch is without it."""
        marked = update(keys.watched(watch.project_id, watch.followed_id), {"expires_at": expires_at}, condition="")
        self._table.write(marked)
        listing = {"gsi1pk": keys.watches_of_connection(watch.connection_id), "gsi1sk": watch.record_id}
        fields = {"record_id": watch.record_id, "connection_id": watch.connection_id, "expires_at": expires_at}
        self._table.write(put(_key(watch) | listing | fields))

    def on(self, project_id: str, followed_id: str) -> list[WatchEntry]:
        found = self._table.query_all(
            keys.watched(project_id, followed_id)["pk"],
            sk_prefix=keys.WATCH_PREFIX,
            consistent=True,
            project=("record_id", "connection_id"),
        )
        return [WatchEntry(project_id, followed_id, item["record_id"], item["connection_id"]) for item in found]

    def remove(self, watches: Iterable[WatchEntry]) -> None:
        self._table.batch_delete(_key(watch) for watch in watches)

    def unmark(self, project_id: str, followed_id: str) -> None:
        """A watch that comes at this very moment loses progress, not the end: ends ask for no marker."""
        self._table.write(delete(keys.watched(project_id, followed_id)))


def _key(watch: WatchEntry) -> dict[str, str]:
    return keys.watch(watch.project_id, watch.followed_id, watch.record_id, watch.connection_id)
