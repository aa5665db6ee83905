"""What the console asks for itself."""

from __future__ import annotations

from tidegate.web.distribution.job_schemas import JobAnswer
from tidegate.web.queue.schemas import ChannelAnswer, RequestAnswer
from tidegate.web.schemas import Answer


class Me(Answer):
    project_id: str
    project_name: str | None = None
    scopes: list[str]
    agent_id: str | None = None
    window_seconds: int


class Lane(ChannelAnswer):
    channel: str


class PointAnswer(Answer):
    count: int
    failed: int


class TypeAnswer(Answer):
    """`points` are the last hour in intervals of two minutes, oldest first."""

    type: str
    count: int
    success_rate: float
    mean_s: float
    p95_s: float
    points: list[PointAnswer]


class Overview(Answer):
    """`complete` is false where more ended in the last hour than was read."""

    channels: list[Lane]
    jobs: list[JobAnswer]
    requests: list[RequestAnswer]
    stats: list[TypeAnswer]
    complete: bool
    compensation: dict[str, object]
