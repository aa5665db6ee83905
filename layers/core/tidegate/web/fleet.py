"""Routes for the fleet: its hosts, and enrolment, by which a new host gets its key."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import Field, model_validator

from tidegate.app import app
from tidegate.distribution.aws_identity import REGION, read_signed
from tidegate.distribution.model import FetchedJob, FleetAgent, Inventory
from tidegate.distribution.swarm import Presence
from tidegate.records import F
from tidegate.releases import releases, rollout
from tidegate.releases.model import HostFile
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Page
from tidegate.web.submits import AgentId, Groups, Labels

# --- fleet schemas

AgentState = Literal["online", "offline"]


class CurrentTransfer(Answer):
    transfer_id: Annotated[str, F("id of the transfer")]
    job_id: Annotated[str | None, F("id of the Job: one file, one window, all its targets")] = None
    file_name: Annotated[str, F("name of the file")]
    container_id: Annotated[str, F("a container on the host; empty for the host itself")]
    progress: Annotated[int | None, F("progress in percent")] = None


class AgentPeers(Answer, record=Presence):
    """The agent's part in swarms, as it announced it within the last two hours."""


class LastJob(Answer, record=FetchedJob):
    """The newest Job for which the host asked for its transfer; `at` is when it last did."""

    key: Annotated[str, F("a short form of the Job's id, for use in paths")]
    status: Annotated[
        str | None, Field(description="the host's status in the Job; null after the Job's records have expired")
    ] = None


class AgentAnswer(Answer, record=FleetAgent):
    """A host. Only GET /v1/agents/{agent_id} returns `current` and `peers`."""

    state: Annotated[AgentState, F("`online` or `offline`")]
    duplicate_at: Annotated[
        str | None,
        Field(description="when a second host with this id was refused, within the last 15 minutes; else null"),
    ] = None
    last_job: Annotated[
        LastJob | None, F("the newest Job for which the host asked for its transfer, and its result there")
    ] = None
    current: Annotated[list[CurrentTransfer] | None, F("the transfers that the host is working on")] = None
    peers: Annotated[AgentPeers | None, F("the host's part in swarms; absent if it takes part in none")] = None


class AgentList(Page):
    items: list[AgentAnswer]


class HostFileAnswer(Answer, record=HostFile):
    """A file that a release has put on the host, as the host reported it."""


class HostFileList(Page):
    items: list[HostFileAnswer]


class AgentChange(Body):
    """A field replaces all old values; an empty list or object removes them. A field that is left out stays."""

    groups: Annotated[Groups | None, F("groups of the host")] = None
    labels: Annotated[Labels | None, F("labels of the host, as `{name: value}`")] = None


class EnrolmentBody(Body):
    groups: Annotated[Groups, F("groups of the hosts that enrol with this token")] = []
    labels: Annotated[Labels, F("labels of the hosts that enrol with this token")] = {}
    uses: Annotated[int, Field(ge=1, le=100_000, description="how many hosts may enrol with the token")] = 1
    expires_in: Annotated[int, Field(ge=60, le=30 * 86400, description="seconds until the token expires")] = 3600
    replace: Annotated[
        bool,
        Field(description="whether a host may enrol under an id that exists: it locks out the host that had the id"),
    ] = False


class EnrolmentAnswer(Answer):
    enrolment_id: Annotated[str, F("id of the enrolment, which the audit trail shows as the actor")]
    token: Annotated[str, F("the token, shown only in this answer")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
HeaderValue = Annotated[str, Field(min_length=1, max_length=4096)]


class AwsIdentityBody(Body):
    """The signed headers of `POST https://sts.REGION.amazonaws.com/` with the body
    `Action=GetCallerIdentity&Version=2011-06-15`. The API sends that request, once."""

    region: Annotated[str, F("the AWS region whose STS verifies the signature, such as eu-central-1", pattern=REGION)]
    headers: Annotated[
        dict[HeaderName, HeaderValue],
        Field(
            min_length=1,
            max_length=12,
            description="Authorization (signature version 4), Content-Type, X-Amz-Date, X-Amz-Security-Token, and "
            "signed with them X-Tidegate-Server-Id (host and port of the API's URL) and X-Tidegate-Project-Id; "
            "X-Tidegate-Nonce, if two are signed within a second",
        ),
    ]


class EnrolBody(Body):
    token: Annotated[str | None, F("the token of POST /v1/enrolments", min_length=1, max_length=200)] = None
    aws: Annotated[
        AwsIdentityBody | None, F("instead of a token: proof of an AWS role that an admin allows the project")
    ] = None
    agent_id: Annotated[
        AgentId | None,
        F(
            "the id that the host will have; at most 128 bytes, without spaces and slashes. With `aws` it is the name "
            "of the role's session, on EC2 the instance id, and may be left out"
        ),
    ] = None
    version: Annotated[str | None, F("version of the agent", min_length=1, max_length=128)] = None
    zone: Annotated[
        str | None, F("rack or availability zone; peers of the same zone are preferred", min_length=1, max_length=128)
    ] = None
    claim: (
        Annotated[
            str,
            Field(
                min_length=16,
                max_length=128,
                description="a random secret that the host keeps: with it, it can enrol again after a lost answer",
            ),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _one_proof(self) -> EnrolBody:
        if (self.token is None) == (self.aws is None):
            raise ValueError("give either token or aws")
        if self.token is not None and self.agent_id is None:
            raise ValueError("agent_id is missing: with a token, it is the id that the host will have")
        return self


class EnrolledAnswer(Answer):
    project_id: Annotated[str, F("id of the project")]
    agent_id: Annotated[str, F("id of the host")]
    key_id: Annotated[str, F("id of the key, by which it is listed, rotated and revoked")]
    key: Annotated[str, F("the host's own key, shown only in this answer")]


# --- fleet

router = Router("Fleet")


@router.get("/v1/agents", scope="read", summary="List agents")
def list_agents(
    group: Annotated[str | None, Query(max_length=63)] = None,
    state: Annotated[AgentState | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> AgentList:
    page = app().distribution.fleet.list(router.caller.project_id, group, state, limit, cursor)
    return AgentList.model_validate(page)


@router.post("/v1/agents/enrol", scope="open", summary="Enrol a host", status_code=201)
def enrol(body: EnrolBody) -> Response[EnrolledAnswer]:
    enrolments, inventory = app().distribution.enrolments, Inventory(body.version, body.zone)
    if body.aws is not None:
        # The host must have signed the name of this API, so that another server cannot enrol here with its signature.
        servers = {urlsplit(app().settings.api_url).netloc, router.current_event.request_context.domain_name or ""}
        signed = read_signed(
            body.aws.region, body.aws.headers, {name.lower() for name in servers if name}, app().clock()
        )
        made = enrolments.enrol_by_aws(signed, body.agent_id, inventory, body.claim)
    else:
        made = enrolments.enrol(body.token or "", body.agent_id or "", inventory, body.claim)
    return answer(EnrolledAnswer.model_validate(made), 201)


@router.get("/v1/agents/<agent_id>", scope="read", summary="Get an agent")
def show(agent_id: str) -> AgentAnswer:
    project_id, name = router.caller.project_id, agent_id
    agent = AgentAnswer.model_validate(app().distribution.fleet.get(project_id, name))
    presence = app().distribution.presences.get(project_id, name)
    return agent.model_copy(update={"peers": AgentPeers.model_validate(presence)}) if presence else agent


@router.get("/v1/agents/<agent_id>/files", scope="read", summary="List the files of releases on a host")
def list_files(agent_id: str, limit: Limit = 20, cursor: Cursor = None) -> HostFileList:
    page = releases.inventory(app().releases, router.caller.project_id, agent_id, limit, cursor)
    return HostFileList.model_validate(page)


@router.patch("/v1/agents/<agent_id>", scope="write", summary="Change the groups and labels of an agent")
def change(agent_id: str, body: AgentChange) -> AgentAnswer:
    caller = router.caller
    changed = app().distribution.fleet.change(caller.project_id, agent_id, body.groups, body.labels, caller.key_id)
    rollout.tell_host(app().releases, caller.project_id, agent_id)
    return AgentAnswer.model_validate(changed)


@router.delete("/v1/agents/<agent_id>", scope="write", summary="Delete an agent and revoke its keys", status_code=204)
def remove(agent_id: str) -> Response[Any]:
    caller = router.caller
    # The reports go first, so that after a crash the host can be deleted again. Each look at a release reads them.
    reports = app().releases.store
    reports.forget_host(caller.project_id, agent_id, list(reports.reports_of_host(caller.project_id, agent_id)))
    app().distribution.fleet.remove(caller.project_id, agent_id, caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/enrolments",
    scope="admin",
    summary="Create an enrolment token for hosts",
    status_code=201,
    middlewares=[idempotent_secret],
)
def add_enrolment(body: EnrolmentBody | None = None) -> Response[EnrolmentAnswer]:
    caller, fields = router.caller, body or EnrolmentBody()
    made = app().distribution.enrolments.add(
        caller.project_id,
        fields.groups,
        fields.labels,
        fields.uses,
        fields.expires_in,
        caller.key_id,
        replace=fields.replace,
    )
    return answer(EnrolmentAnswer.model_validate(made), 201)
