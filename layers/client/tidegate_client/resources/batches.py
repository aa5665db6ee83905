from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import (
    Batch,
    BatchItem,
    BatchOptions,
    BatchRun,
    BatchSchedule,
    Business,
    BusinessOptions,
    DryRunItem,
)
from tidegate_client.resources.paging import Resource

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Businesses(Resource):
    """Registered businesses: their URLs receive the items of batches."""

    def create(self, name: str, process_url: str, **options: Unpack[BusinessOptions]) -> Business:
        """Registers a business. `rate` limits all its batches together, in items a second."""
        body: dict[str, Any] = {"name": name, "process_url": process_url}
        body |= {field: value for field, value in options.items() if value is not None}
        return Business(self._http.create("/v1/biz", body))

    def update(self, biz_id: str, **fields: Any) -> Business:
        return Business(self._http.call("PUT", f"/v1/biz/{path_part(biz_id)}", body=fields).json())

    def delete(self, biz_id: str) -> None:
        """Deletes a business that has no batches and no schedules.
        Otherwise raises Conflict (`in_use`), which names them."""
        self._http.call("DELETE", f"/v1/biz/{path_part(biz_id)}", idempotent=True)

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Business]:
        return self._page("/v1/biz", {}, limit, cursor, Business)


def _schedule_path(schedule_id: str) -> str:
    return f"/v1/batch-schedules/{path_part(schedule_id)}"


def _batch_body(biz_id: str, name: str, rate: float, options: BatchOptions) -> dict[str, Any]:
    fields = {"biz_id": biz_id, "name": name, "rate": rate, **options}
    return {field: value for field, value in fields.items() if value is not None}


class Batches(Resource):
    """Batches: many items, sent to the URL of a business at a rate."""

    def create(self, *, biz_id: str, name: str, rate: float, **options: Unpack[BatchOptions]) -> Batch:
        """Creates a batch. It runs once `start` is called.

        Its items are the numbers up to `total`, the list in `job_data`, or the content of a `source`: `{"file_id":
        …}`, `{"s3_prefix": "s3://bucket/prefix"}` or `{"s3_inventory": "s3://…/manifest.json"}`."""
        return Batch(self._http.create("/v1/batches", _batch_body(biz_id, name, rate, options)))

    def get(self, batch_id: str) -> Batch:
        return Batch(self._http.get(f"/v1/batches/{path_part(batch_id)}"))

    def list(self, *, status: str | None = None, limit: int | None = None, cursor: str | None = None) -> Page[Batch]:
        return self._page("/v1/batches", {"status": status}, limit, cursor, Batch)

    def delete(self, batch_id: str) -> None:
        """Deletes a batch that is not running, with its results, log lines and objects."""
        self._http.call("DELETE", f"/v1/batches/{path_part(batch_id)}", idempotent=True)

    def start(self, batch_id: str) -> Batch:
        return self._act(batch_id, "start")

    def dry_run(self, batch_id: str, *, items: int = 1) -> Sequence[DryRunItem]:
        """Sends the first items to the business, marked `dry_run`, and returns its answers.
        Counts and stores nothing."""
        path = f"/v1/batches/{path_part(batch_id)}/dry-run"
        answer = self._http.call("POST", path, body={"items": items}).json()
        return [DryRunItem(item) for item in answer["items"]]

    def stop(self, batch_id: str) -> Batch:
        return self._act(batch_id, "stop")

    def update(self, batch_id: str, **fields: Any) -> Batch:
        """Changes a batch, even while it runs.

        The fields: rate, concurrency, retries, retry_delay, backoff, item_timeout, limits on failures, pause_windows.
        """
        reply = self._http.call("PATCH", f"/v1/batches/{path_part(batch_id)}", body=fields, idempotent=True)
        return Batch(reply.json())

    def items(
        self, batch_id: str, *, state: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[BatchItem]:
        """Lists the items with problems. `state`: failed, abandoned, or recovered (succeeded after retries)."""
        return self._page(f"/v1/batches/{path_part(batch_id)}/items", {"state": state}, limit, cursor, BatchItem)

    def results(self, batch_id: str) -> dict[str, Any]:
        """Returns a record with the `url` of a JSONL file: the items that failed, were abandoned or succeeded after
        retries.

        Raises Conflict (`not_ready`) while the API still builds the file of a very long batch: call again."""
        return dict(self._http.get(f"/v1/batches/{path_part(batch_id)}/results"))

    def report(self, batch_id: str, *, format: str = "jsonl") -> dict[str, Any]:
        """Returns a record with the `url` of a file with every finished item: its state, attempts, time and the
        answer's msg.

        `format`: `jsonl` or `csv`. The batch must have ended, and must have been created with `report=True`. Raises
        Conflict (`not_ready`) while a large report is unfinished: call again, each call builds a part of it."""
        query = {"all": "true", "format": format}
        return dict(self._http.get(f"/v1/batches/{path_part(batch_id)}/results", query))

    def redrive(self, batch_id: str, *, states: Sequence[str] | None = None) -> Batch:
        """Creates a new batch of the failed items only. It is not started."""
        body = {"states": list(states)} if states else {}
        return Batch(self._http.create(f"/v1/batches/{path_part(batch_id)}/redrive", body))

    def send_result(self, batch_id: str, index: int, result: str, **optional: Any) -> bool:
        """Sends the result of one item of a batch with `ack: "async"`. Raises Conflict if the result does not count,
        with why.

        `optional`: attempt (the number of the call that this answers), msg, stop, logs, auth_code."""
        body = {"result": result} | {field: value for field, value in optional.items() if value is not None}
        path = f"/v1/batches/{path_part(batch_id)}/items/{int(index)}/result"
        return bool(self._http.call("POST", path, body=body, idempotent=True).json()["accepted"])

    def logs(
        self, batch_id: str, *, index: int | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[dict[str, Any]]:
        return self._page(f"/v1/batches/{path_part(batch_id)}/logs", {"index": index}, limit, cursor)

    def export_logs(self, batch_id: str) -> str:
        """Starts an export of all log lines as CSV and returns its id."""
        return str(self._http.create(f"/v1/batches/{path_part(batch_id)}/logs/export", {})["task_id"])

    def repeat(
        self,
        schedule: str,
        *,
        biz_id: str,
        name: str,
        rate: float,
        timezone: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchSchedule:
        """Creates a recurring batch: `rate(6 hours)` or `cron(0 2 * * ? *)`, in `timezone`.
        Each run creates and starts one."""
        body: dict[str, Any] = {"schedule": schedule, "batch": _batch_body(biz_id, name, rate, options)}
        body |= {"timezone": timezone} if timezone else {}
        return BatchSchedule(self._http.create("/v1/batch-schedules", body, idempotency_key=idempotency_key))

    def schedules(self, *, limit: int | None = None, cursor: str | None = None) -> Page[BatchSchedule]:
        return self._page("/v1/batch-schedules", {}, limit, cursor, BatchSchedule)

    def schedule(self, schedule_id: str) -> BatchSchedule:
        return BatchSchedule(self._http.get(_schedule_path(schedule_id)))

    def runs(self, schedule_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[BatchRun]:
        """Lists the runs of a recurring batch, newest first, each with the current state of its batch."""
        return self._page(f"{_schedule_path(schedule_id)}/runs", {}, limit, cursor, BatchRun)

    def update_schedule(
        self,
        schedule_id: str,
        *,
        schedule: str | None = None,
        timezone: str | None = None,
        paused: bool | None = None,
        batch: Mapping[str, Any] | None = None,
        revision: int | None = None,
    ) -> BatchSchedule:
        """Changes or pauses a recurring batch. `batch`: the fields of `create` to change.

        With `revision`, raises Conflict if the schedule was changed since that revision. Runs that are missed during
        a pause are not repeated later."""
        given = {"schedule": schedule, "timezone": timezone, "paused": paused, "batch": batch, "revision": revision}
        body = {field: value for field, value in given.items() if value is not None}
        # With a revision, a repeated call would be refused although the first one was carried out.
        repeatable = revision is None
        return BatchSchedule(
            self._http.call("PATCH", _schedule_path(schedule_id), body=body, idempotent=repeatable).json()
        )

    def delete_schedule(self, schedule_id: str) -> None:
        """Deletes the schedule; the batches that it created stay."""
        self._http.call("DELETE", _schedule_path(schedule_id), idempotent=True)

    def _act(self, batch_id: str, action: str) -> Batch:
        return Batch(self._http.act(f"/v1/batches/{path_part(batch_id)}/{action}"))
