from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidegate.web.schemas import Answer, Body, FileName, FilePath, Number, Signature, Text

_ID_BYTES = 128

Status = Literal["Pending", "Running", "Success", "Failed", "Timeout"]


def _machine_id(value: str) -> str:
    if len(value.encode("utf-8", "surrogatepass")) > _ID_BYTES:
        raise ValueError(f"must be at most {_ID_BYTES} bytes")
    if any(char.isspace() or ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or char in "/\x7f" for char in value):
        raise ValueError("must not hold spaces, slashes or control characters")
    return value


def _absolute(value: str) -> str:
    if not (value.startswith("/") or (value[1:3] in (":\\", ":/") and value[0].isalpha())):
        raise ValueError("must be an absolute path")
    return value


def _web(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must be an http or https URL")
    return value


AgentId = Annotated[str, Field(min_length=1), AfterValidator(_machine_id)]
ContainerId = Annotated[str, AfterValidator(_machine_id)]
Directory = Annotated[FilePath, AfterValidator(_absolute)]
Callback = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_web)]


Mode = Annotated[str, Field(pattern=r"^0?[0-7]{3}$", description="octal permissions, as in 0640")]


class ParcelBody(Body):
    biz_id: Number
    app_id: Number
    file_path: FilePath
    file_name: FileName
    target_user: Text
    target_file_dir: Directory
    file_signature: Signature
    mode: Mode | None = None
    swarm: Annotated[Literal["auto", "off"], Field(description="off: every host fetches from S3")] = "auto"
    callback: Callback | None = None


class DownloadBody(ParcelBody):
    target_agent_id: AgentId
    target_container_id: ContainerId = ""


class TargetBody(Body):
    agent_id: AgentId
    container_id: ContainerId = ""


class DownloadBatchBody(ParcelBody):
    targets: Annotated[list[TargetBody], Field(min_length=1, max_length=1000)]


class SubmittedAnswer(Answer):
    task_id: str
    job_id: str
    status: Status = "Pending"
    window_closes_at: str


class SubmittedTask(Answer):
    task_id: str
    agent_id: str
    container_id: str


class SubmittedBatchAnswer(Answer):
    job_id: str
    tasks: list[SubmittedTask]
    window_closes_at: str


class FiguresAnswer(Answer):
    """How a target's transfer went, once its host has told: bytes moved, bytes a second, times by its clock."""

    size: int | None = None
    speed: int | None = None
    start_time: str | None = None
    end_time: str | None = None


class TaskAnswer(FiguresAnswer):
    task_id: str
    job_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_agent_id: str
    target_container_id: str
    status: Status
    error_code: int | None = None
    error_msg: str | None = None
    progress: int | None = None
    create_time: str
    update_time: str


class TaskList(Answer):
    items: list[TaskAnswer]
    next_cursor: str | None = None
