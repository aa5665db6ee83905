"""Bodies and answers of the fleet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidegate.web.distribution.task_schemas import AgentId, Group, LabelValue
from tidegate.web.schemas import Answer, Body

AgentState = Literal["online", "offline"]
Groups = Annotated[list[Group], Field(max_length=20)]
Labels = Annotated[dict[Group, LabelValue], Field(max_length=20)]


class CurrentTransfer(Answer):
    transfer_id: str
    job_id: str | None = None
    file_name: str
    container_id: str
    progress: int | None = None


class AgentPeers(Answer):
    """The agent's part in swarms, as it announced it within the last two hours."""

    site: str
    listen: list[str]
    reached: bool
    upload_mbit: float | None = None


class LastJob(Answer):
    """The newest Job for which the host asked for its transfer; `at` is when it last did."""

    job_id: str
    key: str
    file_name: str
    status: Annotated[
        str | None, Field(description="the host's status in the Job; null after the Job's records have expired")
    ] = None
    at: str


class AgentAnswer(Answer):
    """A host. Only GET /v1/agents/{agent_id} returns `current` and `peers`."""

    agent_id: str
    groups: list[str]
    labels: dict[str, str]
    zone: str | None = None
    version: str | None = None
    state: AgentState
    last_seen: str | None = None
    free_bytes: int | None = None
    last_job: LastJob | None = None
    current: list[CurrentTransfer] | None = None
    peers: AgentPeers | None = None


class AgentList(Answer):
    items: list[AgentAnswer]
    next_cursor: str | None = None


class AgentChange(Body):
    """A field replaces all old values; an empty list or object removes them. A field that is left out stays."""

    groups: Groups | None = None
    labels: Labels | None = None


class EnrolmentBody(Body):
    groups: Groups = []
    labels: Labels = {}
    uses: Annotated[int, Field(ge=1, le=100_000, description="how many hosts may enrol with the token")] = 1
    expires_in: Annotated[int, Field(ge=60, le=30 * 86400, description="seconds until the token expires")] = 3600


class EnrolmentAnswer(Answer):
    enrolment_id: str
    token: str
    expires_at: str


class EnrolBody(Body):
    token: Annotated[str, Field(min_length=1, max_length=200)]
    agent_id: AgentId
    version: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    zone: Annotated[str, Field(min_length=1, max_length=128)] | None = None


class EnrolledAnswer(Answer):
    project_id: str
    agent_id: str
    key_id: str
    key: str
