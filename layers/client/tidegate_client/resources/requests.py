from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate_client.http import Http, path_part
from tidegate_client.model import Page
from tidegate_client.models import (
    Bulk,
    Credential,
    LogLine,
    Preview,
    Request,
    ScanRun,
    Selection,
    Subscription,
    SubscriptionChanges,
    SubscriptionOptions,
)
from tidegate_client.resources.paging import one_page

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Requests:
    """Requests of the queue: ingests, scans, checks and more."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self,
        kind: str,
        payload: Mapping[str, Any],
        *,
        subscription_id: str | None = None,
        priority: int | None = None,
        channel: str | None = None,
        not_before: str | None = None,
        dedupe_key: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Queues a request. `not_before`: an ISO 8601 time before which it does not run.

        If a request with the same `dedupe_key` has not ended, that one is returned instead."""
        optional = {"subscription_id": subscription_id, "priority": priority, "channel": channel}
        optional |= {"not_before": not_before, "dedupe_key": dedupe_key}
        body: dict[str, Any] = {"type": kind, "payload": dict(payload)}
        body |= {name: value for name, value in optional.items() if value is not None}
        return Request(self._http.create("/v1/requests", body, idempotency_key=idempotency_key))

    def get(self, request_id: str) -> Request:
        return Request(self._http.get(f"/v1/requests/{path_part(request_id)}"))

    def log(self, request_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[LogLine]:
        """The execution log of a request, oldest line first."""
        return one_page(self._http, f"/v1/requests/{path_part(request_id)}/log", {}, limit, cursor, LogLine)

    def bulk(self, action: str, *, priority: int | None = None, **wanted: str) -> Bulk:
        """Cancels, retries or prioritizes every request that matches: type, channel, status, subscription_id."""
        body = {"action": action, **wanted, **({"priority": priority} if priority else {})}
        changed = skipped = 0
        cursor: str | None = None
        while True:
            found = Bulk(self._http.act("/v1/requests/bulk", {**body, "cursor": cursor}, idempotent=True))
            changed, skipped, cursor = changed + found.changed, skipped + found.skipped, found.next_cursor
            if not cursor:
                return Bulk(changed=changed, skipped=skipped)

    def cancel(self, request_id: str) -> Request:
        return self._act(request_id, "cancel")

    def pause(self, request_id: str) -> Request:
        return self._act(request_id, "pause")

    def resume(self, request_id: str) -> Request:
        return self._act(request_id, "resume")

    def retry(self, request_id: str) -> Request:
        return self._act(request_id, "retry")

    def retry_now(self, request_id: str) -> Request:
        """Ends the back-off of a request."""
        return self._act(request_id, "retry-now")

    def prioritize(self, request_id: str, priority: int) -> Request:
        return self._act(request_id, "prioritize", {"priority": priority})

    def _act(self, request_id: str, action: str, body: Mapping[str, Any] | None = None) -> Request:
        return Request(self._http.act(f"/v1/requests/{path_part(request_id)}/{action}", body))


class Subscriptions:
    """Remote sources whose new files are ingested, on a schedule or on demand."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self, name: str, source_url: str, *, schedule: str | None = None, **optional: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """Subscribes to a source.

        Options: timezone (of the schedule), biz_id, app_id, credentials, format, include, exclude, file_path,
        recursive, compare, on_delete, concurrency, priority, politeness."""
        body: dict[str, Any] = {"name": name, "source_url": source_url, "schedule": schedule, **optional}
        given = {field: value for field, value in body.items() if value is not None}
        return Subscription(self._http.create("/v1/subscriptions", given))

    def get(self, subscription_id: str) -> Subscription:
        return Subscription(self._http.get(f"/v1/subscriptions/{path_part(subscription_id)}"))

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Subscription]:
        return one_page(self._http, "/v1/subscriptions", {}, limit, cursor, Subscription)

    def update(self, subscription_id: str, changes: SubscriptionChanges) -> Subscription:
        """Changes the given fields; None removes a value. With `revision`, `Conflict` if it was changed since."""
        path = f"/v1/subscriptions/{path_part(subscription_id)}"
        # With a revision, a repeated call would be refused although the first one was carried out.
        repeatable = changes.get("revision") is None
        return Subscription(self._http.call("PATCH", path, body={**changes}, idempotent=repeatable).json())

    def preview(
        self, source_url: str, *, subscription_id: str | None = None, **selection: Unpack[Selection]
    ) -> Preview:
        """Lists the files that a source would bring, without ingesting them. `selection`: format, include, exclude,
        file_path, recursive. With a `subscription_id`, also what its scan would do: new, changed and gone files."""
        body: dict[str, Any] = {"source_url": source_url, **selection}
        if subscription_id:
            body["subscription_id"] = subscription_id
        return Preview(self._http.act("/v1/subscriptions/preview", body, idempotent=True))

    def pause(self, subscription_id: str) -> Subscription:
        """Stops following the schedule until `resume`."""
        return self._act(subscription_id, "pause")

    def resume(self, subscription_id: str) -> Subscription:
        return self._act(subscription_id, "resume")

    def _act(self, subscription_id: str, action: str) -> Subscription:
        path = f"/v1/subscriptions/{path_part(subscription_id)}/{action}"
        return Subscription(self._http.act(path, idempotent=True))

    def download(self, subscription_id: str, *, confirm_trash: int | None = None) -> Request:
        """Scans the source now; new and changed files are queued. `confirm_trash`: follow the deletion of so many files
        at once, which a scan held back."""
        query = f"?confirm_trash={confirm_trash}" if confirm_trash else ""
        return Request(self._http.create(f"/v1/subscriptions/{path_part(subscription_id)}/download{query}", {}))

    def tasks(self, subscription_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[Request]:
        return one_page(self._http, f"/v1/subscriptions/{path_part(subscription_id)}/tasks", {}, limit, cursor, Request)

    def runs(self, subscription_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[ScanRun]:
        """The runs of its schedule, newest first, each with its scan as it is now."""
        return one_page(self._http, f"/v1/subscriptions/{path_part(subscription_id)}/runs", {}, limit, cursor, ScanRun)

    def delete(self, subscription_id: str) -> None:
        self._http.call("DELETE", f"/v1/subscriptions/{path_part(subscription_id)}")


class Credentials:
    """Headers for sources, stored under a name. They can be replaced, but not read back."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def put(self, name: str, headers: Mapping[str, str], origins: Sequence[str]) -> None:
        """Stores headers that are sent to these origins only ("https://host" or "https://host:port")."""
        body = {"headers": dict(headers), "origins": [*origins]}
        self._http.call("PUT", f"/v1/credentials/{path_part(name)}", body=body)

    def list(self) -> Page[Credential]:
        """Names, origins and the names of the headers; never a value."""
        return one_page(self._http, "/v1/credentials", {}, None, None, Credential)

    def delete(self, name: str) -> None:
        self._http.call("DELETE", f"/v1/credentials/{path_part(name)}")
