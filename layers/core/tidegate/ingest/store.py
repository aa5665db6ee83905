"""Subscriptions in the table, and what was seen in their manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, check, delete, put, put_new, update
from tidegate.common.listing import Listed
from tidegate.ingest.manifests import Entry
from tidegate.ingest.subscription_model import ACTIVE, DELETING, Subscription
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

_FIELDS = tuple(field.name for field in fields(Subscription))

# Within the repository `list` is a method.
Writes = list[Write]


def _subscription(item: Item) -> Subscription:
    return Subscription(**{name: item[name] for name in _FIELDS if name in item})


def _due(subscription: Subscription) -> dict[str, Any]:
    return keys.scheduled(subscription.subscription_id, subscription.due_at) if subscription.due_at else {}


class SubscriptionStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, subscription: Subscription, line: AuditLine) -> None:
        item = keys.subscription(subscription.project_id, subscription.subscription_id) | asdict(subscription)
        listing = {"gsi1pk": keys.subscriptions_list(subscription.project_id), "gsi1sk": subscription.subscription_id}
        self._table.transact([put_new(item | listing | _due(subscription)), audit_write(line)])

    def get(self, project_id: str, subscription_id: str) -> Subscription | None:
        item = self._table.get(keys.subscription(project_id, subscription_id), consistent=True)
        return _subscription(item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Subscription]:
        pk = keys.subscriptions_list(project_id)
        page = self._table.find(pk, limit=limit, cursor=cursor, wanted={"status": ACTIVE})
        return Listed([_subscription(item) for item in page.items], page.cursor)

    def due(self, now: float) -> Iterator[Subscription]:
        for shard in range(keys.DUE_SHARDS):
            bounds = (0, int(now))
            pk = keys.schedule_partition(shard)
            yield from map(_subscription, self._table.query_all(pk, index="due", sk_between=bounds))

    def fired_write(self, subscription: Subscription, due_at: int, request_id: str) -> Write:
        """Moves the schedule on in the transaction that queues the scan: of two who try, one does both."""
        return update(
            keys.subscription(subscription.project_id, subscription.subscription_id),
            {"due_at": due_at, "last_request_id": request_id},
            condition="#due_at = :seen AND #status = :active",
            seen=subscription.due_at,
            active=ACTIVE,
        )

    def skip(self, subscription: Subscription, due_at: int) -> None:
        key = keys.subscription(subscription.project_id, subscription.subscription_id)
        self._table.try_write(update(key, {"due_at": due_at}, condition="#due_at = :seen", seen=subscription.due_at))

    def scanned_write(self, subscription: Subscription, etag: str | None, at: str) -> Write:
        key = keys.subscription(subscription.project_id, subscription.subscription_id)
        return update(key, {"etag": etag, "last_scan": at}, removes=() if etag else ("etag",))

    def seen(self, project_id: str, subscription_id: str) -> dict[str, str]:
        """What the manifest's entries were when they were queued: url → fingerprint."""
        items = self._table.query_all(
            keys.manifest_entries(project_id, subscription_id), consistent=True, project=("url", "fingerprint")
        )
        return {item["url"]: item["fingerprint"] for item in items}

    def seen_writes(self, subscription: Subscription, entry: Entry) -> Writes:
        """Goes with the download of the entry: never without it, and not for a subscription that is being deleted."""
        project_id, subscription_id = subscription.project_id, subscription.subscription_id
        known = keys.manifest_entry(project_id, subscription_id, entry.url)
        return [
            put(
                known | {"url": entry.url, "fingerprint": entry.fingerprint},
                "attribute_not_exists(#pk) OR #fingerprint <> :new",
                new=entry.fingerprint,
            ),
            check(keys.subscription(project_id, subscription_id), "#status = :active", active=ACTIVE),
        ]

    def forget_write(self, project_id: str, subscription_id: str, url: str) -> Write:
        """The next scan takes the entry for new."""
        return delete(keys.manifest_entry(project_id, subscription_id, url))

    def begin_delete(self, project_id: str, subscription_id: str, now: float, line: AuditLine) -> bool:
        """From now on it is due for compensation, until everything of it is gone."""
        due = keys.due(subscription_id, now, "subscription")
        key = keys.subscription(project_id, subscription_id)
        return self._table.try_write(update(key, {"status": DELETING} | due), audit_write(line))

    def delete(self, project_id: str, subscription_id: str) -> None:
        pk = keys.manifest_entries(project_id, subscription_id)
        entries = self._table.query_all(pk, project=("pk", "sk"))
        self._table.batch_delete({"pk": item["pk"], "sk": item["sk"]} for item in entries)
        self._table.write(delete(keys.subscription(project_id, subscription_id)))
