from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt

from tidegate.web.distribution.task_schemas import ContainerId
from tidegate.web.schemas import Answer, Body

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$")]


class TransferAnswer(Answer):
    transfer_id: str
    container_id: str
    url: str
    expires_at: str
    file_name: str
    target_file_dir: str
    target_user: str
    signature: str
    size: int
    job_id: str | None = None
    sequence: int | None = None
    mode: str | None = None
    spread_s: Annotated[int, Field(description="spread reports over this time: the Job has many hosts")] | None = None


class TransferList(Answer):
    items: list[TransferAnswer]


class ResultBody(Body):
    transfer_id: Annotated[str, Field(min_length=1, max_length=200)]
    container_id: ContainerId = ""
    error_code: Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)]
    error_msg: Annotated[str, Field(max_length=2000)] | None = None
    progress: Annotated[int, Field(ge=0, le=100)] | None = None
    size: Annotated[StrictInt, Field(ge=0, le=2**53, description="bytes that this transfer moved")] | None = None
    speed: Annotated[StrictInt, Field(ge=0, le=2**53, description="bytes a second")] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None


class ResultsBody(Body):
    items: Annotated[list[ResultBody], Field(min_length=1, max_length=500)]


class TakenAnswer(Answer):
    taken: int
