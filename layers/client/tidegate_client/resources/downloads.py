from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from tidegate_client.http import Http, path_part
from tidegate_client.model import Page
from tidegate_client.models import BatchSubmitted, Job, JobMap, JobTarget, Redriven, Submitted, Target, Task, Wave
from tidegate_client.resources.paging import one_page

TARGETS_A_CALL = 1000


def _job(job_id: str) -> str:
    """The Job's key as a part of a path. An HTTP API decodes paths, and the file name in an id may have a % in it."""
    if not job_id.startswith("AsyncDownloadJob:"):
        return path_part(job_id)
    raw = job_id.encode("utf-8", "surrogatepass")
    sized = (len(part).to_bytes(8, "big") + part for part in (b"job", raw))
    return hashlib.sha256(b"".join(sized)).hexdigest()[:32]


def _task(task_id: str) -> str:
    """The Task's uuid as a part of a path."""
    return path_part(task_id.rsplit(":", 1)[-1] if task_id.startswith("AsyncDownloadTask:") else task_id)


class Downloads:
    """Distribution: send a file of the library to hosts, one Task for each target."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def submit(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        file_name: str,
        target_agent_id: str,
        target_user: str,
        target_file_dir: str,
        file_signature: str,
        target_container_id: str = "",
        mode: str | None = None,
        swarm: str | None = None,
        limit_rate: int | None = None,
        activate_at: str | None = None,
        note: str | None = None,
        callback: str | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Sends a file to one host. Submits of the same file within the window share a Job. `force`: replace it also
        where a release has it.

        `activate_at` (RFC 3339, at most 7 days ahead): the host fetches the file now and puts it in place then."""
        body: dict[str, object] = {
            "biz_id": biz_id,
            "app_id": app_id,
            "file_path": file_path,
            "file_name": file_name,
            "target_agent_id": target_agent_id,
            "target_container_id": target_container_id,
            "target_user": target_user,
            "target_file_dir": target_file_dir,
            "file_signature": file_signature,
        }
        if mode:
            body["mode"] = mode
        if swarm:
            body["swarm"] = swarm
        if limit_rate:
            body["limit_rate"] = limit_rate
        if activate_at:
            body["activate_at"] = activate_at
        if force:
            body["force"] = True
        if note:
            body["note"] = note
        if callback:
            body["callback"] = callback
        return Submitted(self._http.create("/v1/downloads", body, idempotency_key=idempotency_key))

    def submit_batch(
        self,
        *,
        biz_id: int,
        app_id: int,
        file_path: str,
        file_name: str,
        target_user: str,
        target_file_dir: str,
        file_signature: str,
        targets: Sequence[Target] | None = None,
        groups: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        waves: Sequence[Wave] | None = None,
        mode: str | None = None,
        swarm: str | None = None,
        limit_rate: int | None = None,
        activate_at: str | None = None,
        note: str | None = None,
        callback: str | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> BatchSubmitted:
        """Sends a file to `targets`, or to the hosts in any of the `groups` that have all of the `labels`.

        `activate_at` (RFC 3339, at most 7 days ahead): hosts fetch the file now and put it in place then."""
        body: dict[str, object] = {
            "biz_id": biz_id,
            "app_id": app_id,
            "file_path": file_path,
            "file_name": file_name,
            "target_user": target_user,
            "target_file_dir": target_file_dir,
            "file_signature": file_signature,
        }
        given = {"targets": targets, "groups": groups, "waves": waves}
        body |= {name: [*value] for name, value in given.items() if value is not None}
        if labels:
            body["labels"] = dict(labels)
        if mode:
            body["mode"] = mode
        if swarm:
            body["swarm"] = swarm
        if limit_rate:
            body["limit_rate"] = limit_rate
        if activate_at:
            body["activate_at"] = activate_at
        if force:
            body["force"] = True
        if note:
            body["note"] = note
        if callback:
            body["callback"] = callback
        return BatchSubmitted(self._http.create("/v1/downloads/batch", body, idempotency_key=idempotency_key))

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
        return one_page(self._http, "/v1/downloads", {"job_id": job_id, "status": status}, limit, cursor, Task)


class Jobs:
    """Jobs: one file in one window, for all its targets."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def get(self, job_id: str) -> Job:
        return Job(self._http.get(f"/v1/jobs/{_job(job_id)}"))

    def update(self, job_id: str, *, note: str | None) -> Job:
        """Changes the note; None removes it."""
        path = f"/v1/jobs/{path_part(job_id)}"
        return Job(self._http.call("PATCH", path, body={"note": note}, idempotent=True).json())

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

        Targets to whose path a newer Job sent content are left out (`skipped`); Conflict with the code `newer_job` if
        that is all of them. `force` sends the content to them too, and replaces the newer."""
        given = {"statuses": statuses and [*statuses], "callback": callback, "force": force}
        body = {name: value for name, value in given.items() if value}
        path = f"/v1/jobs/{_job(job_id)}/redrive"
        return Redriven(self._http.create(path, body, idempotency_key=idempotency_key))

    def targets(
        self, job_id: str, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[JobTarget]:
        return one_page(self._http, f"/v1/jobs/{_job(job_id)}/targets", {"status": status}, limit, cursor, JobTarget)

    def map(self, job_id: str, shard: int = 0) -> JobMap:
        """The state of every target, one letter each. Continue with `next_shard` until it is None."""
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
        return one_page(self._http, "/v1/jobs", query, limit, cursor, Job)
