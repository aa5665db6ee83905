"""Routes for projects and API keys, for admins."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import AfterValidator, ConfigDict, Field

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.common.sequences import Listed
from tidegate.distribution.swarm import SwarmSettings
from tidegate.projects.audit import act
from tidegate.projects.keys import ApiKey
from tidegate.projects.limits import DAILY, STANDING
from tidegate.projects.model import AwsRole, GseGrant, Project, Quotas, path_parts
from tidegate.queue.model import MAX_CAPACITY
from tidegate.records import F, declared, record_from, view_of
from tidegate.web.idempotency import idempotent, idempotent_secret
from tidegate.web.queue import ChannelName
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, FilePath, Page, Text, without_defaults
from tidegate.web.submits import Groups, Labels

# --- schemas

Scope = Literal["read", "write", "agent", "unmask"]
MaskName = Literal["phone", "id", "card", "email"]
ColumnName = Annotated[str, Field(min_length=1, max_length=255)]
CopyPattern = Annotated[str, Field(min_length=5, max_length=300, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")]
SourcePattern = Annotated[
    str, Field(max_length=300, pattern=r"^(s3://[^/*?\[]+/.+|dynamodb://[^/*?\[]+|athena://[^/*?\[]+(/[^/*?\[]+)?)$")
]
ProjectName = Annotated[Text, Field(min_length=2, max_length=60)]
# A new project has the defaults of all other fields.
_NOT_GIVEN = tuple(declared(Project).keys() - {"name", "group", "allow_private_urls"})
# Fields that only the answer for one project has, and lists do not.
_ONLY_DETAILS = ("quotas", "swarm", "deliver_to", "read_from", "alarms", "aws_roles", "masks", "shared_signatures")
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


class GseBody(Body, record=GseGrant):
    """Lists that are left out stay as they are. An empty list grants nothing."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    targets: Annotated[list[TargetPattern], Field(max_length=100)] = []
    dirs: Annotated[list[GrantedDirectory], Field(max_length=100)] = []
    users: Annotated[list[Text], Field(max_length=100)] = []


class AwsRoleBody(Body, record=AwsRole):
    model_config = ConfigDict(json_schema_extra=without_defaults)

    groups: Groups = []
    labels: Labels = {}


def _different(roles: list[AwsRoleBody]) -> list[AwsRoleBody]:
    named = ["{account}/{role}".format(**each.model_dump()) for each in roles]
    if twice := [name for name in named if named.count(name) > 1]:
        raise ValueError(f"{twice[0]} is listed twice")
    return roles


class VisibleBody(Body):
    """How many characters of a value stay visible."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    start: Annotated[int, F("characters that stay visible at its start", ge=0, le=64)] = 0
    end: Annotated[int, F("characters that stay visible at its end", ge=0, le=64)] = 0


class ProjectBody(Body, record=Project, without=_NOT_GIVEN):
    name: ProjectName
    group: Text | None = None
    allow_private_urls: bool = False


class QuotasBody(Body, changes=Quotas):
    """Quotas that are left out stay as they are; null sets the default."""

    running: Annotated[int, Field(ge=1, le=MAX_CAPACITY)] | None = None
    share: Shares | None = None


class ProjectChange(Body, changes=Project):
    """Fields that are left out stay as they are; `group: null` removes the group."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    name: ProjectName = ""
    group: Text | None = None
    allow_private_urls: bool = False
    swarm: Literal["auto", "on", "off"] = "auto"
    deliver_to: Annotated[list[CopyPattern], Field(max_length=20)] = []
    read_from: Annotated[list[SourcePattern], Field(max_length=20)] = []
    alarms: Annotated[list[Annotated[str, Field(min_length=1, max_length=255)]], Field(max_length=20)] = []
    aws_roles: Annotated[list[AwsRoleBody], Field(max_length=20), AfterValidator(_different)] = []
    gse: GseBody = GseBody()
    masks: Annotated[dict[ColumnName, MaskName | VisibleBody], Field(max_length=200)] = {}
    shared_signatures: bool = True
    quotas: QuotasBody = QuotasBody()

    def fields(self) -> dict[str, Any]:
        named = self.model_dump(exclude_unset=True, exclude={"quotas", "gse"})
        if "aws_roles" in named:
            named["aws_roles"] = [record_from(AwsRole, each.model_dump()) for each in self.aws_roles]
        return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}

    def limits(self) -> dict[str, Any]:
        return self.quotas.model_dump(exclude_unset=True)

    def grant(self) -> dict[str, list[str]]:
        return self.gse.model_dump(exclude_unset=True)


class GseAnswer(Answer, record=GseGrant):
    """Where the project may send files with `TransferEngine=gse`; without targets, directories or users: nowhere."""


class AwsRoleAnswer(Answer, record=AwsRole):
    """An AWS role whose instances may enrol as hosts, and the groups and labels that they get."""


class ProjectAnswer(Answer, record=Project, without=_ONLY_DETAILS):
    gse: GseAnswer


class QuotasAnswer(Answer, record=Quotas):
    share: dict[str, int] | None = None


class ProjectDetail(Answer, record=Project):
    quotas: QuotasAnswer
    aws_roles: list[AwsRoleAnswer]
    gse: GseAnswer
    defaults: Annotated[dict[str, bool], F("the quotas that have the default, because nobody set them: each `true`")]
    usage: Annotated[
        dict[str, Any],
        F(
            f"usage of the quotas: {', '.join(f'`{name}`' for name in STANDING)}, of this day (UTC) "
            f"{', '.join(f'`{name}`' for name, _ in DAILY.values())}, and `running` by channel"
        ),
    ]


class ProjectList(Page):
    items: list[ProjectAnswer]


class SwarmSettingsBody(Body, record=SwarmSettings):
    """Whether a project's hosts send files to each other, and in which networks."""

    swarm: Literal["auto", "on", "off"] = "auto"
    peer_networks: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32)] = []
    free_sites: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] = []


class SwarmSettingsAnswer(Answer, record=SwarmSettings):
    pass


class AdminKeyBody(Body):
    name: Annotated[Text | None, F("what the key is for; shown in lists")] = None
    expires_in: Lifetime | None = None


class KeyBody(AdminKeyBody):
    scopes: Annotated[list[Scope], F("what the key may do; `agent` needs an agent_id", min_length=1)]
    agent_id: Annotated[Text | None, F("the host that a key of scope `agent` is for")] = None


class RotateBody(Body):
    overlap_s: Annotated[int, Field(ge=0, le=_NINETY_DAYS, description="seconds for which the old key still works")] = (
        86400
    )


class NewKeyAnswer(Answer):
    """`key` is shown only in this answer."""

    key_id: Annotated[str, F("id of the key, by which it is listed, rotated and revoked")]
    key: Annotated[str, F("the key itself, shown only in this answer; only its hash is stored")]


class SignInTicketAnswer(Answer):
    ticket: Annotated[str, F("open the console with it: `/#ticket=…`; it works once, for a minute")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


class SignedInAnswer(NewKeyAnswer):
    """An admin key for the console."""

    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


class KeyAnswer(NewKeyAnswer):
    """`callback_secret` is included for keys of scope `write`."""

    callback_secret: Annotated[
        str | None,
        F(
            "the project's `whsec_…`, which all receivers share, for keys of scope `write`; GET /v1/callback-secret "
            "returns one for a single receiver"
        ),
    ] = None


class KeyRecord(Answer, record=ApiKey):
    created_at: str | None = None
    state: Annotated[Literal["active", "expired", "revoked"], F("`active`, `expired` or `revoked`")]


class KeyList(Page):
    items: list[KeyRecord]


# --- routes

router = Router("Projects")


def _project_detail(project: Project) -> ProjectDetail:
    figures = {"usage": app().queue.project_usage(project.project_id)}
    defaults = dict.fromkeys(project.quotas.at_default, True)
    fields = {name: getattr(project, name) for name in declared(Project)}
    return ProjectDetail.model_validate(fields | figures | {"defaults": defaults})


@router.post("/v1/projects", scope="admin", summary="Create a project", status_code=201, middlewares=[idempotent])
def create_project(body: ProjectBody) -> Response[ProjectAnswer]:
    private, who, projects = body.allow_private_urls, router.caller.key_id, app().projects.projects
    if made := made_before():
        project = projects.get(made["project_id"], consistent=True)
    else:
        project = projects.create(body.name, body.group, allow_private_urls=private, who=who)
    return answer(ProjectAnswer.model_validate(project), 201)


@router.get("/v1/projects", scope="admin", summary="List projects")
def list_projects(limit: Limit = 20, cursor: Cursor = None) -> ProjectList:
    return ProjectList.model_validate(app().projects.projects.list(limit, cursor))


@router.get("/v1/projects/<project_id>", scope="admin", summary="Get a project with its quotas and usage")
def show_project(project_id: str) -> ProjectDetail:
    return _project_detail(app().projects.projects.get(project_id, consistent=True))


@router.patch("/v1/projects/<project_id>", scope="admin", summary="Change a project or its quotas")
def change_project(project_id: str, body: ProjectChange) -> ProjectDetail:
    who, change = router.caller.key_id, app().projects.projects.change
    return _project_detail(change(project_id, body.fields(), body.limits(), who, gse=body.grant()))


@router.get("/v1/projects/<project_id>/swarm", scope="admin", summary="Get a project's swarm settings")
def show_swarm_settings(project_id: str) -> SwarmSettingsAnswer:
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.settings(project_id))


@router.put("/v1/projects/<project_id>/swarm", scope="admin", summary="Replace a project's swarm settings")
def change_swarm_settings(project_id: str, body: SwarmSettingsBody) -> SwarmSettingsAnswer:
    wanted = record_from(SwarmSettings, body.model_dump())
    line = act(project_id, project_id, app().clock(), router.caller.key_id, "project.swarm", body.swarm)
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.change_settings(project_id, wanted, line))


# --- keys


def _key_list(page: Listed[ApiKey]) -> KeyList:
    now = app().clock()
    items = [
        KeyRecord.model_validate(view_of(key) | {"created_at": key.created_at or None, "state": key.state(now)})
        for key in page.items
    ]
    return KeyList(items=items, next_cursor=page.next_cursor)


@router.post(
    "/v1/projects/<project_id>/keys",
    scope="admin",
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
        project_id, body.scopes, body.agent_id, name=body.name, expires_in=body.expires_in, by=router.caller.key_id
    )
    return answer(KeyAnswer(key_id=made.key_id, key=made.key, callback_secret=secret), 201)


@router.get("/v1/projects/<project_id>/keys", scope="admin", summary="List a project's keys")
def list_keys(project_id: str, limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list(project_id, limit, cursor))


@router.post("/v1/keys", scope="admin", summary="Create an admin key", status_code=201, middlewares=[idempotent_secret])
def create_admin_key(body: AdminKeyBody | None = None) -> Response[NewKeyAnswer]:
    fields = body or AdminKeyBody()
    made = app().projects.api_keys.add_admin(name=fields.name, expires_in=fields.expires_in, by=router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.get("/v1/keys", scope="admin", summary="List admin keys")
def list_admin_keys(limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list_admin(limit, cursor))


@router.post(
    "/v1/keys/<key_id>/rotate",
    scope="admin",
    summary="Replace a key with a new one",
    status_code=201,
    middlewares=[idempotent_secret],
)
def rotate_key(key_id: str, body: RotateBody | None = None) -> Response[NewKeyAnswer]:
    made = app().projects.api_keys.rotate(key_id, (body or RotateBody()).overlap_s, router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.delete("/v1/keys/<key_id>", scope="admin", summary="Revoke a key and close its WebSockets", status_code=204)
def delete_key(key_id: str) -> Response[Any]:
    app().projects.api_keys.revoke(key_id, router.caller.key_id)
    return answer(None, 204)


# --- sign-in
# A ticket opens the console without anybody copying a key: `make run` and `tidegate console` print a link with one.


@router.post(
    "/v1/sign-in-tickets",
    scope="admin",
    summary="Create a ticket that opens the console once",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_sign_in_ticket() -> Response[SignInTicketAnswer]:
    ticket, text = app().projects.api_keys.sign_in_ticket(router.caller.key_id)
    return answer(SignInTicketAnswer(ticket=text, expires_at=ticket.expires_at or ""), 201)


@router.post(
    "/v1/sign-in",
    scope="sign_in",
    summary="Exchange a ticket, sent as the key, for an admin key of 12 hours",
    status_code=201,
)
def sign_in() -> Response[SignedInAnswer]:
    key, text = app().projects.api_keys.sign_in(router.caller.key_id)
    return answer(SignedInAnswer(key_id=key.key_id, key=text, expires_at=key.expires_at or ""), 201)
