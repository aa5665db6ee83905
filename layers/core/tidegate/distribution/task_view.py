"""A Task as its caller sees it, from its own record, its Job and its target's state in a shard of the Job."""

from __future__ import annotations

from typing import Any

from tidegate.distribution.model import CANCELLED, FAILED, PENDING, RUNNING, SUCCESS, Job, Task
from tidegate.distribution.targets import CODE_CANCELLED, Shard, TargetState, shard_of


def shard_number(task: Task, job: Job) -> int | None:
    """The number of the shard with the Task's target; None if the Job has no shards."""
    return shard_of(task.target, job.shard_count) if job.shard_count else None


def outcome(job: Job, state: TargetState) -> dict[str, Any]:
    """The fields that show a target's state. An unfinished target ends with its Job."""
    if state.succeeded:
        shown: dict[str, Any] = {"status": SUCCESS, "error_code": state.code}
    elif state.ended:
        shown = {"status": FAILED, "error_code": state.code, "error_msg": state.message}
    elif job.ended:
        # The host's own reason (it was offline) is more specific than the Job's.
        reason = state.message or (job.error or {}).get("detail", "")
        shown = {"status": job.rest, "error_code": job.rest_code, "error_msg": reason}
    else:
        shown = {"status": RUNNING, "error_code": state.code, "error_msg": state.message or None}
    shown |= {"progress": state.progress} | ({"staged_at": state.staged_at} if state.staged_at else {})
    return shown | (state.figures._asdict() if state.figures else {})


def seen(task: Task, job: Job, shard: Shard | None) -> dict[str, Any]:
    spec = job.spec
    state = shard.states.get(task.target) if shard else None
    # Without a state the target has not reached a Job yet, or is moving to a later one.
    result = outcome(job, state) if state is not None else {"status": PENDING}
    if state is None and job.cancelled_at and task.create_time <= job.cancelled_at:
        # The target had not reached the Job when that was cancelled.
        result = {"status": CANCELLED, "error_code": CODE_CANCELLED, "error_msg": "the Job was cancelled"}
    changes = [task.update_time, shard.update_time if shard and state else "", job.finish_time or "" if state else ""]
    return {
        "task_id": spec.task_id(task.uuid),
        "job_id": task.job_id,
        "biz_id": spec.biz_id,
        "app_id": spec.app_id,
        "file_path": spec.file_path,
        "file_name": spec.file_name,
        "file_signature": spec.file_signature,
        "target_agent_id": task.target.agent_id,
        "target_container_id": task.target.container_id,
        "target_file_dir": spec.target_file_dir,
        "target_user": spec.target_user,
        **({"activate_at": spec.activate_at} if spec.activate_at else {}),
        **result,
        "create_time": task.create_time,
        "update_time": max(changes),
    }
