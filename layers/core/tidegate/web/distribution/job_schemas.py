"""Bodies and answers of Jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tidegate.web.distribution.task_schemas import Callback, FiguresAnswer, Status
from tidegate.web.schemas import Answer, Body


class CountsAnswer(Answer):
    total: int
    success: int
    failed: int
    downloading: Annotated[int, Field(description="targets that have begun")]
    timeout: int
    waiting: Annotated[int, Field(description="targets that have not begun; absent if there are none")] | None = None
    staged: (
        Annotated[
            int, Field(description="targets that have the file and wait for activate_at; absent if there are none")
        ]
        | None
    ) = None
    cancelled: Annotated[int, Field(description="cancelled targets; absent if there are none")] | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        # A return annotation would replace the fields in the OpenAPI schema.
        return {name: value for name, value in serialize(self).items() if value is not None}


class SpeedAnswer(Answer):
    """Totals of the hosts that reported figures."""

    moved_bytes: int
    mean: int
    hosts: int


class WaveAnswer(Answer):
    percent: int
    wait_s: int
    max_failed_percent: int
    targets: int | None = None


class ErrorAnswer(Answer):
    code: str
    detail: str


class JobSwarmAnswer(Answer):
    """Where the bytes of the file came from: the sum over hosts that took part in a swarm and have ended."""

    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fallbacks: int
    hosts: int
    bad_peers: list[str]
    reused_bytes: int = 0
    fallback_reasons: Annotated[
        dict[str, int], Field(description="number of hosts by the reason why they fell back to S3: see `fell_back`")
    ] = {}
    egress: (
        Annotated[
            float, Field(description="bytes sent by S3 divided by the size of the file (origin_bytes ÷ file_size)")
        ]
        | None
    ) = None


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
    limit_rate: Annotated[int, Field(description="limit in bytes per second on each host")] | None = None
    file_size: Annotated[int, Field(description="size of the file in bytes; absent until it is sent")] | None = None
    activate_at: Annotated[str, Field(description="when the hosts put the file in place")] | None = None
    transfer_id: str | None = None
    window_closes_at: str
    create_time: str
    execute_time: str | None = None
    finish_time: str | None = None
    counts: CountsAnswer
    error: ErrorAnswer | None = None
    swarm: JobSwarmAnswer | None = None
    speed: SpeedAnswer | None = None
    cancelled_at: str | None = None
    redrive_of: Annotated[str, Field(description="the key of the Job whose targets this Job retries")] | None = None
    waves: list[WaveAnswer] | None = None
    wave: Annotated[int, Field(description="number of the current wave, from 1")] | None = None


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
    staged_at: (
        Annotated[str, Field(description="since when the host has the file and waits for activate_at")] | None
    ) = None
    agent_state: Literal["online", "offline"] | None = None


class JobTargetList(Answer):
    items: list[JobTargetAnswer]
    next_cursor: str | None = None


class JobMapAnswer(Answer):
    """The state of thousands of targets in a compact form."""

    names: list[str]
    states: Annotated[
        str,
        Field(
            description="one letter for each name: W waiting, R running, S success, F failed, T timeout, C cancelled"
        ),
    ]
    next_shard: int | None = None


class RedriveBody(Body):
    statuses: Annotated[list[Literal["Failed", "Timeout", "Cancelled"]], Field(min_length=1, max_length=3)] = [
        "Failed",
        "Timeout",
    ]
    callback: Callback | None = None


class RedrivenAnswer(Answer):
    job_id: str
    key: str
    targets: int
