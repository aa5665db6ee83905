from __future__ import annotations

from typing import Literal

from tidegate.web.distribution.task_schemas import FiguresAnswer, Status
from tidegate.web.schemas import Answer


class CountsAnswer(Answer):
    total: int
    success: int
    failed: int
    downloading: int
    timeout: int


class ErrorAnswer(Answer):
    code: str
    detail: str


class JobAnswer(Answer):
    job_id: str
    key: str
    status: Status
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_file_dir: str
    target_user: str
    mode: str | None = None
    transfer_id: str | None = None
    window_closes_at: str
    create_time: str
    execute_time: str | None = None
    finish_time: str | None = None
    counts: CountsAnswer
    error: ErrorAnswer | None = None


class JobList(Answer):
    items: list[JobAnswer]
    next_cursor: str | None = None


class JobTargetAnswer(FiguresAnswer):
    agent_id: str
    container_id: str
    status: Status
    error_code: int | None = None
    error_msg: str | None = None
    progress: int | None = None
    agent_state: Literal["online", "offline"] | None = None


class JobTargetList(Answer):
    items: list[JobTargetAnswer]
    next_cursor: str | None = None
