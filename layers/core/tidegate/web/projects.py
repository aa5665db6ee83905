"""Routes for projects and API keys, for admins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import AfterValidator, ConfigDict, Field

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.distribution.swarm import SwarmSettings
from tidegate.projects.audit import act
from tidegate.projects.model import ApiKey, Project, path_parts
from tidegate.queue.model import MAX_CAPACITY
from tidegate.web.idempotency import idempotent, idempotent_secret
from tidegate.web.queue import ChannelName
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, FilePath, Text, without_defaults

# --- schemas
# Bodies and answers of projects and API keys.

Scope = Literal["read", "write", "agent"]
CopyPattern = Annotated[str, Field(min_length=5, max_length=300, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")]
SourcePattern = Annotated[
    str, Field(max_length=300, pattern=r"^(s3://[^/*?\[]+/.+|dynamodb://[^/*?\[]+|athena://[^/*?\[]+(/[^/*?\[]+)?)$")
]
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


def _comparable(value: str) -> str:
    if path_parts(value) is None:
        raise ValueError(
            "must be an absolute directory such as /data/app or D:/data/app, without '..', '//' at the start, or a "
            "backslash in a path that starts with a slash"
        )
    return value


TargetPattern = Annotated[str, Field(max_length=260, pattern=r"^[^\s/]+(/[^\s/]+)?$")]
GrantedDirectory = Annotated[FilePath, AfterValidator(_comparable)]


class GseBody(Body):
    """Lists that are left out stay as they are. An empty list grants nothing."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    targets: Annotated[list[TargetPattern], Field(max_length=100)] = []
    dirs: Annotated[list[GrantedDirectory], Field(max_length=100)] = []
    users: Annotated[list[Text], Field(max_length=100)] = []


class ProjectBody(Body):
    name: ProjectName
    group: Text | None = None
    allow_private_urls: bool = False


class QuotasBody(Body):
    """Quotas that are left out stay as they are; null sets the default."""

    stored_bytes: Annotated[int, Field(ge=0, le=2**53)] | None = None
    queued: Annotated[int, Field(ge=0, le=10**9)] | None = None
    running: Annotated[int, Field(ge=1, le=MAX_CAPACITY)] | None = None
    requests_per_s: Annotated[int, Field(ge=1, le=10**6)] | None = None
    runner_hours_per_day: Annotated[int, Field(ge=0, le=10**7)] | None = None
    egress_bytes_per_day: Annotated[int, Field(ge=0, le=2**53)] | None = None
    targets_per_day: Annotated[int, Field(ge=0, le=10**12)] | None = None
    outgoing_calls_per_day: Annotated[int, Field(ge=0, le=10**12)] | None = None
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

    model_config = ConfigDict(json_schema_extra=without_defaults)

    name: ProjectName = ""
    group: Text | None = None
    allow_private_urls: bool = False
    swarm: Annotated[
        Literal["auto", "on", "off"],
        Field(
            description="whether the project's hosts send files to each other: `auto` those outside the bucket's region"
        ),
    ] = "auto"
    deliver_to: Annotated[list[CopyPattern], Field(max_length=20)] = []
    read_from: Annotated[list[SourcePattern], Field(max_length=20)] = []
    gse: GseBody = GseBody()
    shared_signatures: bool = True
    quotas: QuotasBody = QuotasBody()

    def fields(self) -> dict[str, Any]:
        named = self.model_dump(exclude_unset=True, exclude={"quotas", "gse"})
        return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}

    def limits(self) -> dict[str, Any]:
        return self.quotas.model_dump(exclude_unset=True)

    def grant(self) -> dict[str, list[str]]:
        return self.gse.model_dump(exclude_unset=True)


class GseAnswer(Answer):
    """Where the project may send files with `TransferEngine=gse`; without targets, directories or users: nowhere."""

    targets: list[str]
    dirs: list[str]
    users: list[str]


class ProjectAnswer(Answer):
    project_id: str
    name: str
    group: str | None = None
    allow_private_urls: bool = False
    created_at: str
    gse: GseAnswer


class QuotasAnswer(Answer):
    stored_bytes: int | None = None
    queued: int | None = None
    running: int | None = None
    requests_per_s: int | None = None
    runner_hours_per_day: int | None = None
    egress_bytes_per_day: int | None = None
    targets_per_day: int | None = None
    outgoing_calls_per_day: int | None = None
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
    shared_signatures: bool
    quotas: QuotasAnswer
    defaults: dict[str, bool]
    usage: dict[str, Any]

    @classmethod
    def of(cls, project: Project, usage: dict[str, Any]) -> ProjectDetail:
        return cls(
            **ProjectAnswer.model_validate(project).model_dump(),
            swarm=project.swarm,
            deliver_to=list(project.deliver_to),
            read_from=list(project.read_from),
            shared_signatures=project.shared_signatures,
            quotas=QuotasAnswer.model_validate(project.quotas),
            defaults=dict.fromkeys(project.quotas.at_default, True),
            usage=usage,
        )


class ProjectList(Answer):
    items: list[ProjectAnswer]
    next_cursor: str | None = None


class SwarmSettingsBody(Body):
    """Whether a project's hosts send files to each other, and in which networks."""

    swarm: Annotated[
        Literal["auto", "on", "off"],
        Field(
            description="`auto`: hosts of a site also send the file to each other, except those in an availability "
            "zone of the bucket's region, which S3 serves for free; `on`: those too; `off`: every host downloads it"
        ),
    ] = "auto"
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


# --- routes
# Routes for projects, for admins.

router = Router()


def _shown(project: Project) -> ProjectDetail:
    return ProjectDetail.of(project, app().queue.project_usage(project.project_id))


@router.post(
    "/v1/projects",
    scope="admin",
    tags=["Projects"],
    summary="Create a project",
    status_code=201,
    middlewares=[idempotent],
)
def create_project(body: ProjectBody) -> Response[ProjectAnswer]:
    private, who = body.allow_private_urls, router.caller.key_id
    project = app().projects.projects.create(body.name, body.group, allow_private_urls=private, who=who)
    return answer(ProjectAnswer.model_validate(project), 201)


@router.get("/v1/projects", scope="admin", tags=["Projects"], summary="List projects")
def list_projects(limit: Limit = 20, cursor: Cursor = None) -> ProjectList:
    page = app().projects.projects.list(limit, cursor)
    return ProjectList(items=[ProjectAnswer.model_validate(item) for item in page.items], next_cursor=page.next_cursor)


@router.get(
    "/v1/projects/<project_id>",
    scope="admin",
    tags=["Projects"],
    summary="Get a project with its quotas and usage",
)
def show_project(project_id: str) -> ProjectDetail:
    return _shown(app().projects.projects.get(project_id, consistent=True))


@router.patch("/v1/projects/<project_id>", scope="admin", tags=["Projects"], summary="Change a project or its quotas")
def change_project(project_id: str, body: ProjectChange) -> ProjectDetail:
    who, change = router.caller.key_id, app().projects.projects.change
    return _shown(change(project_id, body.fields(), body.limits(), who, gse=body.grant()))


@router.get(
    "/v1/projects/<project_id>/swarm", scope="admin", tags=["Projects"], summary="Get a project's swarm settings"
)
def show_swarm_settings(project_id: str) -> SwarmSettingsAnswer:
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.settings(project_id))


@router.put(
    "/v1/projects/<project_id>/swarm", scope="admin", tags=["Projects"], summary="Replace a project's swarm settings"
)
def change_swarm_settings(project_id: str, body: SwarmSettingsBody) -> SwarmSettingsAnswer:
    wanted = SwarmSettings(body.swarm, tuple(body.peer_networks), tuple(body.free_sites))
    line = act(project_id, project_id, app().clock(), router.caller.key_id, "project.swarm", body.swarm)
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.change_settings(project_id, wanted, line))


# --- keys
# Routes for API keys, for admins.

_TAGS = ["Projects"]


def _key_list(page: Listed[ApiKey]) -> KeyList:
    now = app().clock()
    return KeyList(items=[KeyRecord.of(key, now) for key in page.items], next_cursor=page.next_cursor)


@router.post(
    "/v1/projects/<project_id>/keys",
    scope="admin",
    tags=_TAGS,
    summary="Create a key",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_key(project_id: str, body: KeyBody) -> Response[KeyAnswer]:
    # Only keys of scope write get the callback secret. It is derived before the key is created: if the root secret
    # cannot be read, no key is left behind that nobody has seen.
    secret = (
        app().projects.callback_secrets.newest(app().projects.projects.get(project_id))
        if "write" in body.scopes
        else None
    )
    made = app().projects.api_keys.add(
        project_id,
        body.scopes,
        body.agent_id,
        name=body.name,
        expires_in=body.expires_in,
        by=router.caller.key_id,
    )
    return answer(KeyAnswer(key_id=made.key_id, key=made.key, callback_secret=secret), 201)


@router.get(
    "/v1/projects/<project_id>/keys",
    scope="admin",
    tags=_TAGS,
    summary="List a project's keys",
)
def list_keys(project_id: str, limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list(project_id, limit, cursor))


@router.post(
    "/v1/keys",
    scope="admin",
    tags=_TAGS,
    summary="Create an admin key",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_admin_key(body: AdminKeyBody | None = None) -> Response[NewKeyAnswer]:
    fields = body or AdminKeyBody()
    made = app().projects.api_keys.add_admin(name=fields.name, expires_in=fields.expires_in, by=router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.get("/v1/keys", scope="admin", tags=_TAGS, summary="List admin keys")
def list_admin_keys(limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list_admin(limit, cursor))


@router.post(
    "/v1/keys/<key_id>/rotate",
    scope="admin",
    tags=_TAGS,
    summary="Replace a key with a new one",
    status_code=201,
    middlewares=[idempotent_secret],
)
def rotate_key(key_id: str, body: RotateBody | None = None) -> Response[NewKeyAnswer]:
    made = app().projects.api_keys.rotate(key_id, (body or RotateBody()).overlap_s, router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.delete(
    "/v1/keys/<key_id>", scope="admin", tags=_TAGS, summary="Revoke a key and close its WebSockets", status_code=204
)
def delete_key(key_id: str) -> Response[Any]:
    app().projects.api_keys.revoke(key_id, router.caller.key_id)
    return answer(None, 204)
