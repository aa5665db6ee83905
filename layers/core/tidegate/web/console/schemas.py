"""Answers of the routes that only the console calls."""

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


class ChannelOverview(ChannelAnswer):
    channel: str


class PointAnswer(Answer):
    count: int
    failed: int


class TypeAnswer(Answer):
    """What ended in the last hour, for one type of work."""

    type: str
    count: int
    success_rate: float
    mean_s: float
    p95_s: float
    points: list[PointAnswer]


class Overview(Answer):
    """Current activity, and what ended in the last hour."""

    channels: list[ChannelOverview]
    jobs: list[JobAnswer]
    requests: list[RequestAnswer]
    stats: list[TypeAnswer]
    complete: bool
    compensation: dict[str, object]
