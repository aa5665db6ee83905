"""Subscriptions in the table, and the entries of their lists that were seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, check, delete, put, put_new, update
from tidegate.common.listing import Listed
from tidegate.errors import QuotaExceeded
from tidegate.ingest.feeds.entry import Entry
from tidegate.ingest.subscription_model import ACTIVE, DELETING, Subscription
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import count_write
from tidegate.queue.due_schedules import due_items

_FIELDS = tuple(field.name for field in fields(Subscription))
# Subscriptions are deleted by hand, not within seconds.
_QUOTA_RETRY_SECONDS = 3600

# In the class below, `list` is a method.
Writes = list[Write]


def subscription_from(item: Item) -> Subscription:
    return Subscription(**{name: item[name] for name in _FIELDS if item.get(name) is not None})


def _due(subscription: Subscription) -> dict[str, Any]:
    return keys.scheduled(subscription.subscription_id, subscription.due_at) if subscription.due_at else {}


def _moment(due_at: int | None) -> dict[str, Any]:
    return {"due_at": due_at} if due_at else {}


class SubscriptionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, subscription: Subscription, line: AuditLine, limit: int) -> None:
        """QuotaExceeded if the project has `limit` of them already."""
        given = {name: value for name, value in asdict(subscription).items() if value is not None}
        item = keys.subscription(subscription.project_id, subscription.subscription_id) | given
        listing = {"gsi1pk": keys.subscriptions_list(subscription.project_id), "gsi1sk": subscription.subscription_id}
        counted = count_write(subscription.project_id, "subscriptions", 1, limit)
        try:
            self._table.transact([put_new(item | listing | _due(subscription)), counted, audit_write(line)])
        except ConditionFailed as error:
            if 1 not in error.failed:
                raise
            raise QuotaExceeded.of("subscriptions", limit, _QUOTA_RETRY_SECONDS) from error

    def get(self, project_id: str, subscription_id: str) -> Subscription | None:
        item = self._table.get(keys.subscription(project_id, subscription_id), consistent=True)
        return subscription_from(item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Subscription]:
        pk = keys.subscriptions_list(project_id)
        page = self._table.find(pk, limit=limit, cursor=cursor, wanted={})
        found = [subscription_from(item) for item in page.items]
        return Listed([one for one in found if one.status != DELETING], page.cursor)

    def change(self, old: Subscription, new: Subscription, line: AuditLine, *, read_again: bool) -> bool:
        """False if it was changed or deleted meanwhile. `read_again`: the next scan sends no ETag."""
        names = [name for name in _FIELDS if getattr(new, name) != getattr(old, name)]
        sets = {name: getattr(new, name) for name in names if getattr(new, name) is not None}
        gone = [name for name in names if getattr(new, name) is None and name not in keys.DUE_ATTRIBUTES]
        # Otherwise left alone: the schedule may have fired since `old` was read, and must not be due again.
        if "due_at" in names:
            sets |= _due(new)
            gone += () if new.due_at else keys.DUE_ATTRIBUTES
        key, same = keys.subscription(old.project_id, old.subscription_id), "#status = :was"
        adds = {"failures": 1} if read_again else None
        if sets or gone or adds:
            write = update(key, sets, adds=adds, removes=gone, condition=same, was=old.status)
        else:
            write = check(key, same, was=old.status)
        try:
            self._table.transact([write, audit_write(line)])
        except ConditionFailed:
            return False
        return True

    def due(self, now: float) -> Iterator[Item]:
        """Subscriptions that are due, one of each project in turn."""
        return due_items(self._table, [keys.schedule_partition(shard) for shard in range(keys.SCHEDULE_SHARDS)], now)

    def fired_write(self, subscription: Subscription, due_at: int | None, request_id: str) -> Write:
        """Sets the next run, in the transaction that queues the scan: of two concurrent runs, only one succeeds."""
        return update(
            keys.subscription(subscription.project_id, subscription.subscription_id),
            {"last_request_id": request_id} | _moment(due_at),
            removes=() if due_at else keys.DUE_ATTRIBUTES,
            condition="#due_at = :seen AND #status = :active",
            seen=subscription.due_at,
            active=ACTIVE,
        )

    def skip(self, subscription: Subscription, due_at: int | None) -> None:
        key = keys.subscription(subscription.project_id, subscription.subscription_id)
        removes = () if due_at else keys.DUE_ATTRIBUTES
        same = "#due_at = :seen"
        self._table.try_write(update(key, _moment(due_at), removes=removes, condition=same, seen=subscription.due_at))

    def scanned_write(self, subscription: Subscription, etag: str | None, at: str) -> Write:
        key = keys.subscription(subscription.project_id, subscription.subscription_id)
        sets = {"etag": etag, "etag_failures": subscription.failures, "last_scan": at}
        return update(key, sets, removes=() if etag else ("etag",))

    def seen(self, project_id: str, subscription_id: str) -> dict[str, str]:
        """The fingerprint that each entry had when it was last queued, by URL."""
        items = self._table.query_all(
            keys.manifest_entries(project_id, subscription_id), consistent=True, project=("url", "fingerprint")
        )
        return {item["url"]: item["fingerprint"] for item in items}

    def seen_writes(self, subscription: Subscription, entry: Entry) -> Writes:
        """Marks the entry as seen, in the transaction that queues its download; refused for a deleted subscription."""
        project_id, subscription_id = subscription.project_id, subscription.subscription_id
        known = keys.manifest_entry(project_id, subscription_id, entry.url)
        return [
            put(
                known | {"url": entry.url, "fingerprint": entry.fingerprint},
                "attribute_not_exists(#pk) OR #fingerprint <> :new",
                new=entry.fingerprint,
            ),
            # `<>` is true of an attribute that is missing, so a deleted record must be refused by its own clause.
            check(
                keys.subscription(project_id, subscription_id),
                "attribute_exists(#pk) AND #status <> :deleting",
                deleting=DELETING,
            ),
        ]

    def forget_writes(self, project_id: str, subscription_id: str, url: str) -> Writes:
        """Makes the next scan send no ETag and queue the entry again."""
        if self.get(project_id, subscription_id) is None:
            return []
        failed = update(keys.subscription(project_id, subscription_id), adds={"failures": 1})
        return [delete(keys.manifest_entry(project_id, subscription_id, url)), failed]

    def remember_writes(self, project_id: str, subscription_id: str, url: str, fingerprint: str) -> Writes:
        """For a failed download that is retried: marks the entry as seen, so that no scan queues it again."""
        if self.get(project_id, subscription_id) is None:
            return []
        known = keys.manifest_entry(project_id, subscription_id, url)
        return [put(known | {"url": url, "fingerprint": fingerprint})]

    def begin_delete(self, project_id: str, subscription_id: str, now: float, line: AuditLine) -> bool:
        """Marks it as being deleted. Compensation continues until all its records are gone."""
        due = keys.due(subscription_id, now, "subscription")
        key = keys.subscription(project_id, subscription_id)
        return self._table.try_write(update(key, {"status": DELETING} | due), audit_write(line))

    def delete(self, project_id: str, subscription_id: str) -> None:
        pk = keys.manifest_entries(project_id, subscription_id)
        # Consistent: no later call would delete an entry that was written just now and is not seen.
        entries = self._table.query_all(pk, consistent=True, project=("pk", "sk"))
        self._table.batch_delete({"pk": item["pk"], "sk": item["sk"]} for item in entries)
        found = self.get(project_id, subscription_id)
        counted = [count_write(project_id, "subscriptions", -1)] if found and found.counted else []
        # Conditional, because two functions may delete it at once and it is counted once.
        self._table.try_write(delete(keys.subscription(project_id, subscription_id), "attribute_exists(#pk)"), *counted)
