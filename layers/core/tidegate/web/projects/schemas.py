"""Bodies and answers of projects and API keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tidegate.common.ids import iso
from tidegate.projects.model import ApiKey, Project
from tidegate.queue.channels.model import MAX_CAPACITY
from tidegate.web.queue.schemas import ChannelName
from tidegate.web.schemas import Answer, Body, Text

Scope = Literal["read", "write", "agent"]
CopyPattern = Annotated[str, Field(min_length=5, max_length=300, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")]
SourcePattern = Annotated[str, Field(max_length=300, pattern=r"^(s3://[^/*?\[]+/.+|(dynamodb|athena)://[^/*?\[]+)$")]
ProjectName = Annotated[Text, Field(min_length=2, max_length=60)]
_TEN_YEARS = 10 * 365 * 86400
_NINETY_DAYS = 90 * 86400
Lifetime = Annotated[
    int, Field(ge=1, le=_TEN_YEARS, description="seconds until the key expires; without it, it does not expire")
]
Shares = Annotated[
    dict[ChannelName, Annotated[int, Field(ge=1, le=MAX_CAPACITY)]],
    Field(
        min_length=1,
        max_length=50,
        description="by channel, the slots that the project may hold while another project waits",
    ),
]


class ProjectBody(Body):
    name: ProjectName
    group: Text | None = None
    allow_private_urls: bool = False


class QuotasBody(Body):
    """Quotas that are left out stay as they are; null sets the default, which for most is no limit."""

    stored_bytes: Annotated[int, Field(ge=0, le=2**53)] | None = None
    queued: Annotated[int, Field(ge=0, le=10**9)] | None = None
    requests_per_s: Annotated[int, Field(ge=1, le=10**6)] | None = None
    export_schedules: Annotated[int, Field(ge=0, le=10**6)] | None = None
    batch_schedules: Annotated[int, Field(ge=0, le=10**6)] | None = None
    subscriptions: Annotated[int, Field(ge=0, le=10**6)] | None = None
    businesses: Annotated[int, Field(ge=0, le=10**6)] | None = None
    unstarted_batches: Annotated[int, Field(ge=0, le=10**6)] | None = None
    open_uploads: Annotated[int, Field(ge=0, le=10**6)] | None = None
    slow_calls: Annotated[int, Field(ge=1, le=100)] | None = None
    share: Shares | None = None


class ProjectChange(Body):
    """Fields that are left out stay as they are; `group: null` removes the group."""

    name: ProjectName = ""
    group: Text | None = None
    allow_private_urls: bool = False
    swarm: Annotated[
        Literal["auto", "off"], Field(description="whether the project's hosts send files to each other")
    ] = "auto"
    deliver_to: Annotated[list[CopyPattern], Field(max_length=20)] = []
    read_from: Annotated[list[SourcePattern], Field(max_length=20)] = []
    quotas: QuotasBody = QuotasBody()

    def fields(self) -> dict[str, Any]:
        named = self.model_dump(exclude_unset=True, exclude={"quotas"})
        return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}

    def limits(self) -> dict[str, Any]:
        return self.quotas.model_dump(exclude_unset=True)


class ProjectAnswer(Answer):
    project_id: str
    name: str
    group: str | None = None
    allow_private_urls: bool = False
    created_at: str


class QuotasAnswer(Answer):
    stored_bytes: int | None = None
    queued: int | None = None
    requests_per_s: int | None = None
    export_schedules: int | None = None
    batch_schedules: int | None = None
    subscriptions: int
    businesses: int
    unstarted_batches: int
    open_uploads: int
    slow_calls: int
    share: dict[str, int] | None = None


class ProjectDetail(ProjectAnswer):
    swarm: str
    deliver_to: list[str]
    read_from: list[str]
    quotas: QuotasAnswer
    usage: dict[str, Any]

    @classmethod
    def of(cls, project: Project, usage: dict[str, Any]) -> ProjectDetail:
        return cls(
            **ProjectAnswer.model_validate(project).model_dump(),
            swarm=project.swarm,
            deliver_to=list(project.deliver_to),
            read_from=list(project.read_from),
            quotas=QuotasAnswer.model_validate(project.quotas),
            usage=usage,
        )


class ProjectList(Answer):
    items: list[ProjectAnswer]
    next_cursor: str | None = None


class SwarmSettingsBody(Body):
    """Whether a project's hosts send files to each other, and in which networks."""

    swarm: Literal["auto", "off"] = "auto"
    peer_networks: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32)] = []
    free_sites: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] = []


class SwarmSettingsAnswer(Answer):
    swarm: str
    peer_networks: list[str]
    free_sites: list[str]


class AdminKeyBody(Body):
    name: Text | None = None
    expires_in: Lifetime | None = None


class KeyBody(AdminKeyBody):
    scopes: Annotated[list[Scope], Field(min_length=1)]
    agent_id: Text | None = None


class RotateBody(Body):
    overlap_s: Annotated[int, Field(ge=0, le=_NINETY_DAYS, description="seconds for which the old key still works")] = (
        86400
    )


class NewKeyAnswer(Answer):
    """`key` is shown only in this answer."""

    key_id: str
    key: str


class KeyAnswer(NewKeyAnswer):
    """`callback_secret` is included for keys of scope `write`."""

    callback_secret: str | None = None


class KeyRecord(Answer):
    key_id: str
    name: str | None = None
    scopes: list[str]
    agent_id: str | None = None
    created_at: str | None = None
    created_by: str | None = None
    expires_at: str | None = None
    last_used_at: str | None = None
    state: Literal["active", "expired", "revoked"]

    @classmethod
    def of(cls, key: ApiKey, now: datetime) -> KeyRecord:
        return cls.model_validate(
            {
                "key_id": key.key_id,
                "name": key.name,
                "scopes": list(key.scopes),
                "agent_id": key.agent_id,
                "created_at": key.created_at or None,
                "created_by": key.created_by,
                "expires_at": None if key.valid_until is None else iso(datetime.fromtimestamp(key.valid_until, UTC)),
                "last_used_at": key.last_used_at,
                "state": key.state(now),
            }
        )


class KeyList(Answer):
    items: list[KeyRecord]
    next_cursor: str | None = None
