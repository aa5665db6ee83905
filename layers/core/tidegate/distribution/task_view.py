"""A Task as its caller sees it: its own record, its Job's, and its target's place in a shard of the Job."""

from __future__ import annotations

from typing import Any

from tidegate.distribution.model import CANCELLED, FAILED, PENDING, RUNNING, SUCCESS, Job, Task
from tidegate.distribution.targets import CODE_CANCELLED, Shard, TargetState, shard_of


def shard_number(task: Task, job: Job) -> int | None:
    """The shard that holds the Task's target; None while there are none, and if the Job closed without any target."""
    return shard_of(task.target, job.shard_count) if job.shard_count else None


def outcome(job: Job, state: TargetState) -> dict[str, Any]:
    """A target that had not ended when its Job did ended with it."""
    if state.succeeded:
        shown: dict[str, Any] = {"status": SUCCESS, "error_code": state.code}
    elif state.ended:
        shown = {"status": FAILED, "error_code": state.code, "error_msg": state.message}
    elif job.ended:
        # A reason of this host (it was offline) says more than why the Job ended.
        reason = state.message or (job.error or {}).get("detail", "")
        shown = {"status": job.rest, "error_code": job.rest_code, "error_msg": reason}
    else:
        shown = {"status": RUNNING, "error_code": state.code, "error_msg": state.message or None}
    shown |= {"progress": state.progress} | ({"staged_at": state.staged_at} if state.staged_at else {})
    return shown | (state.figures._asdict() if state.figures else {})


def seen(task: Task, job: Job, shard: Shard | None) -> dict[str, Any]:
    parcel = job.parcel
    state = shard.states.get(task.target) if shard else None
    # Not among the targets of a closed Job: it is on its way to a later one.
    result = outcome(job, state) if state is not None else {"status": PENDING}
    if state is None and job.cancelled_at and task.create_time <= job.cancelled_at:
        # Its target had not reached the Job when the Job was cancelled.
        result = {"status": CANCELLED, "error_code": CODE_CANCELLED, "error_msg": "the Job was cancelled"}
    changes = [task.update_time, shard.update_time if shard and state else "", job.finish_time or "" if state else ""]
    return {
        "task_id": parcel.task_id(task.uuid),
        "job_id": task.job_id,
        "biz_id": parcel.biz_id,
        "app_id": parcel.app_id,
        "file_path": parcel.file_path,
        "file_name": parcel.file_name,
        "file_signature": parcel.file_signature,
        "target_agent_id": task.target.agent_id,
        "target_container_id": task.target.container_id,
        "target_file_dir": parcel.target_file_dir,
        "target_user": parcel.target_user,
        **({"activate_at": parcel.activate_at} if parcel.activate_at else {}),
        **result,
        "create_time": task.create_time,
        "update_time": max(changes),
    }
