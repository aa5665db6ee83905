from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import (
    Bulk,
    Credential,
    LogLine,
    Preview,
    PreviewOptions,
    Request,
    RequestOptions,
    ScanRun,
    Subscription,
    SubscriptionChanges,
    SubscriptionOptions,
)
from tidegate_client.resources.paging import Resource

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Requests(Resource):
    """Requests of the queue: ingests, scans, checks and more."""

    def create(
        self,
        kind: str,
        payload: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Queues a request. `not_before`: an ISO 8601 time before which it does not run.

        If an unfinished request has the same `dedupe_key`, that request is returned instead."""
        body: dict[str, Any] = {"type": kind, "payload": dict(payload)}
        body |= {name: value for name, value in options.items() if value is not None}
        return Request(self._http.create("/v1/requests", body, idempotency_key=idempotency_key))

    def get(self, request_id: str) -> Request:
        return Request(self._http.get(f"/v1/requests/{path_part(request_id)}"))

    def log(self, request_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[LogLine]:
        """Lists the lines of a request's execution log, oldest first."""
        return self._page(f"/v1/requests/{path_part(request_id)}/log", {}, limit, cursor, LogLine)

    def bulk(self, action: str, *, priority: int | None = None, **wanted: str) -> Bulk:
        """Applies an action to every request that matches: `cancel`, `retry`, `retry-now` or `prioritize`.

        `wanted`: the filters type, channel, status and subscription_id."""
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
        """Ends a request's back-off, so that it is retried immediately."""
        return self._act(request_id, "retry-now")

    def prioritize(self, request_id: str, priority: int) -> Request:
        return self._act(request_id, "prioritize", {"priority": priority})

    def _act(self, request_id: str, action: str, body: Mapping[str, Any] | None = None) -> Request:
        return Request(self._http.act(f"/v1/requests/{path_part(request_id)}/{action}", body))


class Subscriptions(Resource):
    """Remote sources whose new files are ingested, on a schedule or on demand."""

    def create(self, name: str, source_url: str, **options: Unpack[SubscriptionOptions]) -> Subscription:
        """Subscribes to a source. Its new and changed files are ingested on the `schedule`, in its `timezone`."""
        body: dict[str, Any] = {"name": name, "source_url": source_url, **options}
        given = {field: value for field, value in body.items() if value is not None}
        return Subscription(self._http.create("/v1/subscriptions", given))

    def get(self, subscription_id: str) -> Subscription:
        return Subscription(self._http.get(f"/v1/subscriptions/{path_part(subscription_id)}"))

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Subscription]:
        return self._page("/v1/subscriptions", {}, limit, cursor, Subscription)

    def update(self, subscription_id: str, changes: SubscriptionChanges) -> Subscription:
        """Changes the given fields; None removes a value. With `revision`, raises Conflict if it was changed since."""
        path = f"/v1/subscriptions/{path_part(subscription_id)}"
        # With a revision, a repeated call would be refused although the first one was carried out.
        repeatable = changes.get("revision") is None
        return Subscription(self._http.call("PATCH", path, body={**changes}, idempotent=repeatable).json())

    def preview(self, source_url: str, **options: Unpack[PreviewOptions]) -> Preview:
        """Lists the files that a source offers, and ingests nothing.

        With a `subscription_id`, also says which files its next scan would find new, changed and gone."""
        body = {"source_url": source_url, **{name: value for name, value in options.items() if value is not None}}
        return Preview(self._http.act("/v1/subscriptions/preview", body, idempotent=True))

    def pause(self, subscription_id: str) -> Subscription:
        """Stops the scheduled scans until `resume` is called."""
        return self._act(subscription_id, "pause")

    def resume(self, subscription_id: str) -> Subscription:
        return self._act(subscription_id, "resume")

    def _act(self, subscription_id: str, action: str) -> Subscription:
        path = f"/v1/subscriptions/{path_part(subscription_id)}/{action}"
        return Subscription(self._http.act(path, idempotent=True))

    def download(self, subscription_id: str, *, confirm_trash: int | None = None) -> Request:
        """Scans the source now and queues its new and changed files.

        `confirm_trash`: how many files that are gone from the source may be moved to the trash, if an earlier scan
        stopped at that number."""
        query = f"?confirm_trash={confirm_trash}" if confirm_trash else ""
        return Request(self._http.create(f"/v1/subscriptions/{path_part(subscription_id)}/download{query}", {}))

    def tasks(self, subscription_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[Request]:
        return self._page(f"/v1/subscriptions/{path_part(subscription_id)}/tasks", {}, limit, cursor, Request)

    def runs(self, subscription_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[ScanRun]:
        """Lists the scheduled runs, newest first, each with the current state of its scan."""
        return self._page(f"/v1/subscriptions/{path_part(subscription_id)}/runs", {}, limit, cursor, ScanRun)

    def delete(self, subscription_id: str) -> None:
        self._http.call("DELETE", f"/v1/subscriptions/{path_part(subscription_id)}")


class Credentials(Resource):
    """Named HTTP headers, such as tokens, that are sent to sources. They can be replaced, but never read back."""

    def put(self, name: str, headers: Mapping[str, str], origins: Sequence[str]) -> None:
        """Stores headers under a name. They are sent to these origins only ("https://host" or "https://host:port")."""
        body = {"headers": dict(headers), "origins": [*origins]}
        self._http.call("PUT", f"/v1/credentials/{path_part(name)}", body=body)

    def list(self) -> Page[Credential]:
        """Lists the names of credentials, their origins and the names of their headers, never a header's value."""
        return self._page("/v1/credentials", {}, None, None, Credential)

    def delete(self, name: str) -> None:
        self._http.call("DELETE", f"/v1/credentials/{path_part(name)}")
