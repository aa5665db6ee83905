from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tidegate_client.download import download_to
from tidegate_client.errors import problem_of
from tidegate_client.http import path_part
from tidegate_client.model import Model, Page
from tidegate_client.models import Export, ExportRun, ExportSchedule, Link, Placeholders
from tidegate_client.resources.paging import Resource
from tidegate_client.uploads import Progress


def _schedule_path(schedule_id: str) -> str:
    return f"/v1/export-schedules/{path_part(schedule_id)}"


class Exports(Resource):
    """Exports: CSV, Excel, JSON lines and Parquet files, from rows or from a paged source."""

    def submit(
        self, fields: Mapping[str, Any], *, multiple: bool = False, idempotency_key: str | None = None
    ) -> dict[str, str]:
        """Queues an export and returns its ids.
        `fields`: those of POST /v1/task, or with `multiple` of /v1/task/multiple."""
        path = "/v1/task/multiple" if multiple else "/v1/task"
        return cast("dict[str, str]", self._http.create(path, fields, idempotency_key=idempotency_key))

    def repeat(
        self,
        fields: Mapping[str, Any],
        schedule: str,
        *,
        timezone: str | None = None,
        multiple: bool = False,
        idempotency_key: str | None = None,
    ) -> ExportSchedule:
        """Creates a recurring export: `rate(1 day)` or `cron(0 6 ? * MON *)`, in `timezone`.

        Each run replaces `{date}`, `{time}`, `{from}` and `{to}` in `source_url`, `source`, `file_name` and the keys
        of `deliver`."""
        path = "/v1/export-schedules/multiple" if multiple else "/v1/export-schedules"
        body = {**fields, "schedule": schedule, **({"timezone": timezone} if timezone else {})}
        return ExportSchedule(self._http.create(path, body, idempotency_key=idempotency_key))

    def schedules(self, *, limit: int | None = None, cursor: str | None = None) -> Page[ExportSchedule]:
        return self._page("/v1/export-schedules", {}, limit, cursor, ExportSchedule)

    def schedule(self, schedule_id: str) -> ExportSchedule:
        return ExportSchedule(self._http.get(_schedule_path(schedule_id)))

    def runs(self, schedule_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[ExportRun]:
        """Lists the runs of a recurring export, newest first."""
        return self._page(f"{_schedule_path(schedule_id)}/runs", {}, limit, cursor, ExportRun)

    def update_schedule(self, schedule_id: str, fields: Mapping[str, Any]) -> ExportSchedule:
        """Changes a recurring export: any field of `submit`, and `schedule`, `timezone` and `paused`. None removes a
        field.

        With `revision`, raises Conflict if it was changed since that revision."""
        # With a revision, a repeated call would be refused although the first one was carried out.
        repeatable = fields.get("revision") is None
        answer = self._http.call("PATCH", _schedule_path(schedule_id), body=dict(fields), idempotent=repeatable)
        return ExportSchedule(answer.json())

    def pause_schedule(self, schedule_id: str) -> ExportSchedule:
        return ExportSchedule(self._http.act(f"{_schedule_path(schedule_id)}/pause", idempotent=True))

    def resume_schedule(self, schedule_id: str) -> ExportSchedule:
        return ExportSchedule(self._http.act(f"{_schedule_path(schedule_id)}/resume", idempotent=True))

    def delete_schedule(self, schedule_id: str) -> None:
        """Deletes the schedule; the exports that it created stay."""
        self._http.call("DELETE", _schedule_path(schedule_id), idempotent=True)

    def sample(self, source_url: str) -> Model:
        """Returns the first rows of a source: `{rows, total, answered}`. Queues and stores nothing."""
        return Model(self._http.act("/v1/task/sample", {"source_url": source_url}, idempotent=True))

    def placeholders(self, file_id: str) -> Placeholders:
        """Returns what a template in the library needs: values, lists with their columns, and its first cells."""
        return Placeholders(self._http.get("/v1/task/placeholders", {"file_id": file_id}))

    def get(self, task_id: str) -> Export:
        return Export(self._http.get("/v1/task", {"task_id": task_id}))

    def update(self, task_id: str, **fields: Any) -> Export:
        """Changes the remarks of an export, such as its `note`; None removes one."""
        query = {"task_id": task_id}
        return Export(self._http.call("PATCH", "/v1/task", query=query, body=fields, idempotent=True).json())

    def list(
        self,
        *,
        status: str | None = None,
        operator_id: str | None = None,
        merchant_type: int | None = None,
        merchant_id: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Export]:
        query = {
            "status": status,
            "operator_id": operator_id,
            "merchant_type": merchant_type,
            "merchant_id": merchant_id,
            "name": name,
        }
        return self._page("/v1/tasks", query, limit, cursor, Export)

    def delete(self, task_ids: Sequence[str]) -> int:
        """Deletes exports and their files; returns how many were deleted."""
        answer = self._http.act("/v1/tasks/delete", {"task_ids": list(task_ids)}, idempotent=True)
        return int(answer["deleted"])

    def url(self, task_id: str) -> Link:
        """Returns a presigned URL of the finished file, valid for five minutes."""
        return Link(self._http.get("/v1/download/url", {"task_id": task_id}))

    def fetch(self, task_id: str, destination: Path, *, on_progress: Progress | None = None) -> Export:
        """Downloads the finished file to `destination`."""
        record = self.get(task_id)
        download_to(
            self._http.pool,
            lambda _refused: self.url(task_id)["url"],
            destination,
            size=record.get("size"),
            on_progress=on_progress,
        )
        return record

    def sync(self, fields: Mapping[str, Any], *, multiple: bool = False) -> bytes:
        """Makes a small export within one call and returns the bytes of its file."""
        path = "/v1/download/sync/multiple" if multiple else "/v1/download/sync"
        reply = self._http.call("POST", path, body=fields, idempotent=True, timeout=60)
        if reply.status in {302, 303, 307}:
            # A file over 4.5 MB is on S3. The presigned URL needs no key, and the key must not be sent there.
            stored = self._http.pool.request("GET", reply.headers["Location"], timeout=60)
            if stored.status != 200:
                raise problem_of(stored.status, stored.data)
            return stored.data
        return reply.body
