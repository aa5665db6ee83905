from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate_client.http import path_part
from tidegate_client.model import Page
from tidegate_client.models import (
    BatchDownloadOptions,
    BatchSubmitted,
    DownloadOptions,
    Job,
    JobMap,
    JobTarget,
    Redriven,
    Submitted,
    Task,
)
from tidegate_client.resources.paging import Resource

if TYPE_CHECKING:
    from typing_extensions import Unpack

TARGETS_A_CALL = 1000


def _job(job_id: str) -> str:
    """Returns the Job as a path segment: a hash of the Job's id.

    The id itself may have a %, and API Gateway decodes paths."""
    if not job_id.startswith("AsyncDownloadJob:"):
        return path_part(job_id)
    raw = job_id.encode("utf-8", "surrogatepass")
    sized = (len(part).to_bytes(8, "big") + part for part in (b"job", raw))
    return hashlib.sha256(b"".join(sized)).hexdigest()[:32]


def _task(task_id: str) -> str:
    """Returns the Task as a path segment: the UUID at the end of its id."""
    return path_part(task_id.rsplit(":", 1)[-1] if task_id.startswith("AsyncDownloadTask:") else task_id)


class Downloads(Resource):
    """Distribution: send a file of the library to hosts, one Task for each target."""

    def submit(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        file_name: str,
        file_signature: str,
        target_agent_id: str,
        target_user: str,
        target_file_dir: str,
        idempotency_key: str | None = None,
        **options: Unpack[DownloadOptions],
    ) -> Submitted:
        """Sends a file to one host. Submits of the same file within one window share a Job.

        `force`: also replace a file that a release manages. `activate_at` (RFC 3339, at most 7 days ahead): the host
        downloads the file now and puts it in place at that time."""
        body: dict[str, object] = {
            "biz_id": biz_id,
            "app_id": app_id,
            "file_path": file_path,
            "file_name": file_name,
            "file_signature": file_signature,
            "target_agent_id": target_agent_id,
            "target_user": target_user,
            "target_file_dir": target_file_dir,
        }
        answer = self._http.create("/v1/downloads", body | _given(options), idempotency_key=idempotency_key)
        return Submitted(answer)

    def submit_batch(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        file_name: str,
        file_signature: str,
        target_user: str,
        target_file_dir: str,
        idempotency_key: str | None = None,
        **options: Unpack[BatchDownloadOptions],
    ) -> BatchSubmitted:
        """Sends a file to `targets`, or to the hosts in any of the `groups` that have all of the `labels`.

        `activate_at` (RFC 3339, at most 7 days ahead): hosts download the file now and put it in place at that time."""
        body: dict[str, object] = {
            "biz_id": biz_id,
            "app_id": app_id,
            "file_path": file_path,
            "file_name": file_name,
            "file_signature": file_signature,
            "target_user": target_user,
            "target_file_dir": target_file_dir,
        }
        answer = self._http.create("/v1/downloads/batch", body | _given(options), idempotency_key=idempotency_key)
        return BatchSubmitted(answer)

    def get(self, task_id: str) -> Task:
        return Task(self._http.get(f"/v1/downloads/{_task(task_id)}"))

    def list(
        self,
        *,
        job_id: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Task]:
        return self._page("/v1/downloads", {"job_id": job_id, "status": status}, limit, cursor, Task)


class Jobs(Resource):
    """Jobs: a Job sends one file to all targets of one window."""

    def get(self, job_id: str) -> Job:
        return Job(self._http.get(f"/v1/jobs/{_job(job_id)}"))

    def update(self, job_id: str, **fields: Any) -> Job:
        """Changes the Job's remarks, such as its `note`; None removes one."""
        return Job(self._http.call("PATCH", f"/v1/jobs/{_job(job_id)}", body=fields, idempotent=True).json())

    def cancel(self, job_id: str) -> Job:
        """Cancels the Job: targets that do not have the file yet become Cancelled within seconds."""
        return Job(self._http.act(f"/v1/jobs/{_job(job_id)}/cancel", idempotent=True))

    def redrive(
        self,
        job_id: str,
        *,
        statuses: Sequence[str] | None = None,
        callback: str | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> Redriven:
        """Starts a new Job for the targets that ended as Failed or Timeout, or in one of `statuses`.

        Targets whose path got content from a newer Job are left out and listed in `skipped`. If all are, raises
        Conflict (`newer_job`). With `force` they are included: the old content replaces the newer."""
        given = {"statuses": statuses and [*statuses], "callback": callback, "force": force}
        body = {name: value for name, value in given.items() if value}
        path = f"/v1/jobs/{_job(job_id)}/redrive"
        return Redriven(self._http.create(path, body, idempotency_key=idempotency_key))

    def targets(
        self, job_id: str, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[JobTarget]:
        return self._page(f"/v1/jobs/{_job(job_id)}/targets", {"status": status}, limit, cursor, JobTarget)

    def map(self, job_id: str, shard: int = 0) -> JobMap:
        """Returns the state of every target as one letter. Call again with `shard=next_shard` until that is None."""
        return JobMap(self._http.get(f"/v1/jobs/{_job(job_id)}/map", {"shard": shard}))

    def list(
        self,
        *,
        biz_id: int | None = None,
        app_id: int | None = None,
        file_path: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Job]:
        query = {"biz_id": biz_id, "app_id": app_id, "file_path": file_path, "status": status}
        return self._page("/v1/jobs", query, limit, cursor, Job)


def _given(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the options that have a value.

    Other options are not sent, because an older API refuses fields that it does not know."""
    return {name: value for name, value in options.items() if value}
