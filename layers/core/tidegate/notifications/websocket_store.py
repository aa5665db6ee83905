"""WebSocket tickets and connections, and the records that each connection watches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import delete, put, put_new, update
from tidegate.common.ids import digest
from tidegate.notifications.websocket_messages import Holder, WatchEntry


class ConnectionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add_ticket(self, ticket: str, holder: Holder, expires_at: int) -> None:
        self._table.write(put_new(keys.ticket(ticket) | asdict(holder) | {"expires_at": expires_at}))

    def redeem(self, ticket: str, connection_id: str, now: float) -> Holder | None:
        """The ticket's holder; None if it is unknown, expired, or used by another connection.

        The same connection may redeem it again. The time is checked here because the table's TTL deletes late.
        """
        free = "(attribute_not_exists(#used_by) OR #used_by = :connection)"
        condition = f"attribute_exists(#pk) AND #expires_at > :now AND {free}"
        used = update(
            keys.ticket(ticket), {"used_by": connection_id}, condition=condition, now=now, connection=connection_id
        )
        try:
            return _holder(self._table.write(used))
        except ConditionFailed:
            return None

    def add(self, connection_id: str, holder: Holder, expires_at: int) -> None:
        """Stores the connection under its id, and under its key, where a revocation finds it."""
        held = asdict(holder) | {"expires_at": expires_at}
        # Listed with the connection's watches, so that it is removed with them. An agent's watches nothing: it expires.
        listing = {"gsi1pk": keys.watches_of_connection(connection_id), "gsi1sk": "KEY"} if holder.may_watch else {}
        under_key = keys.key_connection(holder.key_record_id, connection_id) | {"expires_at": expires_at}
        self._table.batch_put([keys.connection(connection_id) | held, under_key | listing])

    def holder_of(self, connection_id: str) -> Holder | None:
        """Reads consistently: a client's first message may come right after the connection was stored."""
        item = self._table.get(keys.connection(connection_id), consistent=True)
        return _holder(item) if item else None

    def count_watches(self, connection_id: str, added: int, most: int) -> bool:
        """Adds to the connection's count of watches. False if it would be more than `most`.

        Watches that end are not subtracted. So if the count is too high, the watches themselves are counted.
        """
        if self._add_watches(connection_id, added, most):
            return True
        listed = self._table.query_all(keys.watches_of_connection(connection_id), index="gsi1", project=("sk",))
        watches = sum(1 for _ in islice(listed, most + 1)) - 1
        self._table.try_write(update(keys.connection(connection_id), {"watches": max(0, watches)}))
        return self._add_watches(connection_id, added, most)

    def _add_watches(self, connection_id: str, added: int, most: int) -> bool:
        few = "attribute_exists(#pk) AND (attribute_not_exists(#watches) OR #watches <= :few)"
        key = keys.connection(connection_id)
        return self._table.try_write(update(key, adds={"watches": added}, condition=few, few=most - added))

    def of_key(self, record_id: str) -> list[str]:
        """Every open connection that was made with a key."""
        found = self._table.query_all(keys.key_connections(record_id), consistent=True, project=("sk",))
        return [item["sk"] for item in found]

    def remove(self, connection_id: str) -> None:
        of_it = self._table.query_all(keys.watches_of_connection(connection_id), index="gsi1", project=("pk", "sk"))
        watches = [{"pk": item["pk"], "sk": item["sk"]} for item in of_it]
        self._table.batch_delete([keys.connection(connection_id), *watches])


def _holder(item: Item) -> Holder | None:
    """None for an old ticket or connection without a key: the client has to get another ticket."""
    key_record_id = item.get("key_record_id")
    if not key_record_id:
        return None
    agent_id, may_watch = item.get("agent_id"), item.get("may_watch", True)
    return Holder(str(item["project_id"]), str(key_record_id), agent_id, bool(may_watch))


class WatchStore:
    """A watched record has a marker item. Without it, progress costs one read and nothing is sent."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def is_watched(self, project_id: str, record_id: str) -> bool:
        return self._table.get(keys.watched(project_id, record_id)) is not None

    def take_turn(self, project_id: str, record_id: str, now: float, interval: float) -> bool:
        """True for one caller per interval, over all functions."""
        turn = update(
            keys.watched(project_id, record_id),
            {"told_at": now},
            condition="attribute_exists(#pk) AND (attribute_not_exists(#told_at) OR #told_at <= :before)",
            before=now - interval,
        )
        return self._table.try_write(turn)

    def add(self, watch: WatchEntry, expires_at: int) -> None:
        """Writes the marker before the watch, so that no watch is without a marker."""
        marked = update(keys.watched(watch.project_id, watch.followed_id), {"expires_at": expires_at}, condition="")
        self._table.write(marked)
        # A digest: an id may be longer than a sort key of an index.
        listing = {"gsi1pk": keys.watches_of_connection(watch.connection_id), "gsi1sk": digest(watch.record_id)}
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
        """Removes the marker. A watch that is added at the same moment misses progress, but not the end."""
        self._table.write(delete(keys.watched(project_id, followed_id)))


def _key(watch: WatchEntry) -> dict[str, str]:
    return keys.watch(watch.project_id, watch.followed_id, watch.record_id, watch.connection_id)
