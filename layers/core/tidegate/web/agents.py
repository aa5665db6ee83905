"""Routes that agents call. A key of scope `agent` is bound to one agent and has access to its transfers only."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import Field, StrictInt

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.distribution.fleet import agent_process
from tidegate.distribution.inbox import InboxEntry, OfferedTransfer, Result
from tidegate.distribution.model import AgentProcess, Figures, FleetAgent, SwarmFigures, TargetReport
from tidegate.distribution.swarm import Presence
from tidegate.records import record_from, view_of
from tidegate.releases import rollout
from tidegate.releases.model import HealthCheck, HostReport, ReleaseFile, Revision
from tidegate.web.routing import Caller, Router
from tidegate.web.schemas import Answer, Body, F, Signature
from tidegate.web.submits import AgentId, ContainerId

# --- agent schemas


Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$")]


class PeerAnswer(Answer):
    id: Annotated[str, F("agent_id of the peer")]
    at: Annotated[list[str], F("addresses `host:port` of the peer")]
    pin: Annotated[str, F("SHA-256 of the TLS certificate, base64url")]
    token: Annotated[str, F("the token to send to the peer")]
    near: Annotated[bool, F("whether the peer is in the same zone")]


class SwarmAnswer(Answer):
    """The host's place in the swarm of its Job, and the peers that it may ask for pieces."""

    id: Annotated[str, F("id of the swarm")]
    number: Annotated[int, F("this host's number in the swarm")]
    members: Annotated[int, F("number of hosts in the swarm")]
    seed: Annotated[int, F("seed of the random order in which pieces are downloaded")]
    ranks: Annotated[
        int, F("how many hosts may download a piece from S3 before `patience` is over, by their rank for it")
    ]
    hold: Annotated[float, F("a host of rank r waits r times so many seconds for peers before it uses S3")]
    patience: Annotated[float, F("seconds after which any host may download a piece from S3")]
    age: Annotated[float, F("seconds since the swarm began")]
    lasts: Annotated[float, F("seconds until the swarm ends")]
    piece_size: Annotated[int, F("bytes of a piece")]
    pieces_sha256: Annotated[str, F("SHA-256 of the list of pieces")]
    pieces_url: Annotated[str, F("URL of the list with the SHA-256 of every piece")]
    blocks_sha256: Annotated[
        str | None, F("SHA-256 of the list of blocks; absent for files that were stored before such lists existed")
    ] = None
    blocks_url: Annotated[
        str | None,
        F("URL of the list of blocks, in which a host with an older version finds the parts that it already has"),
    ] = None
    accept: Annotated[str, F("the key with which the host verifies the tokens of its peers")]
    peers: Annotated[list[PeerAnswer], F("the peers to ask for pieces")]


class TransferAnswer(Answer, record=InboxEntry):
    container_id: Annotated[str, F("a container on the host; empty for the host itself")]
    url: Annotated[str, F("a presigned URL, which needs no key")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]
    spread_s: int | None = None
    swarm: Annotated[SwarmAnswer | None, F("the host's place in a swarm, if there is one")] = None
    activate_until: Annotated[str | None, F("the end of the Job; do not put the file in place after it")] = None
    staged_at: Annotated[str | None, F("when the host reported that it has the whole file; absent before that")] = None


class TransferList(Answer):
    items: list[TransferAnswer]
    releases: Annotated[bool | None, F("true if the host should ask for the goals of its releases")] = None


class FileGoal(Answer, record=ReleaseFile, without=("biz_id", "app_id", "file_path")):
    """A file that should be on the host."""


class HealthGoal(Answer, record=HealthCheck):
    """How the host finds out whether it is healthy."""


class GoalAnswer(
    Answer,
    record=Revision,
    without=("number", "waves", "activate", "alarm", "on_failure", "note", "created_at", "created_by"),
):
    """The revision that the host should have. The host ignores a number that is not above the one it has."""

    name: Annotated[str, F("the name of the release")]
    revision: Annotated[int, F("the number of the revision")]
    hold: Annotated[bool, F("stage the files, and put them in place only when this is false")]
    sending: Annotated[
        list[str], F("signatures of contents that are being sent to the host; `has` may list them already")
    ]
    files: list[FileGoal]
    health: HealthGoal | None = None


class GoalList(Answer):
    items: list[GoalAnswer]


class HookResultBody(Body):
    """How a hook or a check ended."""

    code: Annotated[StrictInt, F("exit code, or HTTP status", ge=-(2**31), le=2**31 - 1)]
    output: Annotated[str, F("the end of what it printed", max_length=4096)] = ""


class ReleaseReport(
    Body,
    record=HostReport,
    without=("agent_id", "reported_at", "project_id", "life", "sent", "task", "tries", "try_at"),
):
    state: Literal["current", "staged", "failed", "drifted"]
    hook: HookResultBody | None = None
    health: HookResultBody | None = None
    drift: Annotated[
        list[Annotated[str, Field(max_length=1200)]], F("files that were changed on the host, and how", max_length=20)
    ] = []


class AskBody(Body):
    """What the host has; the answer is what it should have."""

    releases: Annotated[list[ReleaseReport], F("what the host has of each release", max_length=200)] = []
    has: Annotated[
        list[Signature], F("SHA-256 of contents that the host has kept, or that are being sent to it", max_length=2000)
    ] = []


class SwarmResult(Body, record=SwarmFigures, without=("fallbacks", "hosts", "fallback_reasons")):
    """Where the bytes of a transfer came from."""

    origin_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)]
    peer_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)]
    bad_pieces: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0
    fell_back: Annotated[
        Literal["none", "ladder", "alone", "deadline", "no_peers", "bad_pieces", "broken"],
        F(
            "why the host downloaded the rest from S3: `none` it did not; `ladder` peers sent too little; `alone` no "
            "peer answered (perhaps ports are blocked); `no_peers` no other host listens; `bad_pieces` peers sent "
            "wrong pieces; `deadline` peers were too slow; `broken` the swarm did not deliver the file"
        ),
    ] = "none"
    bad_peers: Annotated[list[AgentId], Field(max_length=4)] = []
    reused_bytes: Annotated[StrictInt, Field(ge=0, le=2**50)] = 0


class TransferResultBody(Body, record=Figures):
    transfer_id: Annotated[str, F("`transfer_id` of the item that is reported", min_length=1, max_length=200)]
    container_id: Annotated[ContainerId, F("a container on the host; empty for the host itself")] = ""
    error_code: Annotated[
        StrictInt, F("0 success, 115 in progress, any other value failure", ge=-(2**31), le=2**31 - 1)
    ]
    error_msg: Annotated[str | None, F("the reason of a failure, for people", max_length=2000)] = None
    progress: Annotated[int | None, F("progress in percent", ge=0, le=100)] = None
    size: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = None
    speed: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    staged_at: Annotated[
        Moment | None, F("with error_code 115: since when the host has the whole file and waits for activate_at")
    ] = None
    swarm: Annotated[SwarmResult | None, F("where the bytes came from, if the host took part in a swarm")] = None


class ResultsBody(Body):
    items: Annotated[list[TransferResultBody], F("one entry for each transfer", min_length=1, max_length=500)]


class TakenAnswer(Answer):
    taken: Annotated[int, F("number of results that were recorded")]


class PresenceBody(Body, record=Presence, without=("agent_id",)):
    """Where an agent is, and at which addresses peers can reach it. Without `listen` it only downloads from peers."""

    listen: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=4)] = []
    site: Annotated[str, Field(max_length=64)] = ""
    zone: Annotated[str, Field(max_length=64)] = ""
    pin: Annotated[str, Field(pattern=r"^([A-Za-z0-9_-]{43})?$")] = ""
    upload_mbit: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    reached: Annotated[bool, F("whether peers could connect to the host")] = True


class PresenceAnswer(Answer):
    expires_at: Annotated[str, F("announce the host again before this time, ISO 8601 UTC")]


# --- agents


def build_router() -> Router:
    """Returns a new router with these routes.

    Two functions serve these routes, `agents` and `api`. Each needs a router of its own, because a router belongs to
    one resolver.
    """
    router = Router("Agents")

    @router.get("/v1/agents/<agent_id>/transfers", scope="agent", summary="List the transfers of an agent")
    def inbox(agent_id: str, wait: Annotated[int, Query(ge=0, le=20)] = 0) -> TransferList:
        # Headers, because an older API ignores them; it would refuse an unknown parameter.
        headers = router.current_event.headers
        can, told = (headers.get("x-tidegate-can") or "").split(","), headers.get("x-tidegate-goals")
        running, caller = app(), router.caller
        project_id, process = caller.project_id, _process(router, caller)
        # A poll that waits keeps a function busy, so their number is limited.
        with running.projects.slow_calls.poll_held(project_id, agent_id) if wait else nullcontext():
            agent, offers = running.distribution.agents.inbox(project_id, agent_id, wait, can=can, process=process)
        asks = "release" in can and rollout.differs(running.releases, project_id, agent, told)
        return TransferList(items=[_transfer_answer(offer) for offer in offers], releases=True if asks else None)

    @router.post("/v1/agents/<agent_id>/results", scope="agent", summary="Report results of transfers")
    def report(agent_id: str, body: ResultsBody) -> TakenAnswer:
        results = [_result(item) for item in body.items]
        caller = router.caller
        app().distribution.agents.report(caller.project_id, agent_id, results, _process(router, caller))
        return TakenAnswer(taken=len(results))

    @router.put("/v1/agents/<agent_id>/releases", scope="agent", summary="Report on releases and get their goals")
    def ask(agent_id: str, body: AskBody) -> GoalList:
        caller, host = router.caller, agent_id
        project_id, process = caller.project_id, _process(router, caller)
        life = process.life or 0
        agent = app().distribution.fleet.admit(project_id, host, process)
        now = iso(app().clock())
        reports = [
            HostReport(
                project_id=project_id,
                agent_id=host,
                life=life,
                reported_at=now,
                **item.model_dump(exclude={"drift"}),
                drift=tuple(item.drift),
            )
            for item in body.releases
        ]
        known = agent or FleetAgent(project_id, host, life=life)
        goals = rollout.ask(app().releases, project_id, known, reports, frozenset(body.has))
        return GoalList(items=[_goal(goal) for goal in goals])

    @router.put("/v1/agents/<agent_id>/presence", scope="agent", summary="Announce an agent to its peers")
    def put_presence(agent_id: str, body: PresenceBody) -> PresenceAnswer:
        caller, host = router.caller, agent_id
        app().distribution.fleet.admit(caller.project_id, host, _process(router, caller))
        presence = record_from(Presence, vars(body), agent_id=host)
        source = router.current_event.request_context.http.source_ip
        return PresenceAnswer(expires_at=app().distribution.presences.put(caller.project_id, presence, source))

    return router


def _process(router: Router, caller: Caller) -> AgentProcess:
    # A header, because an older API ignores it.
    instance = router.current_event.headers.get("x-tidegate-instance")
    return agent_process(caller.life if caller.agent_id else None, instance)


def _goal(goal: rollout.Goal) -> GoalAnswer:
    whole = asdict(goal.revision) | {"revision": goal.revision.number, "hold": goal.hold, "sending": goal.sending}
    return GoalAnswer.model_validate(whole)


def _result(item: TransferResultBody) -> Result:
    reported = Figures(*(getattr(item, name) for name in Figures._fields))
    figures = reported if any(value is not None for value in reported) else None
    swarm, staged_at = _swarm_figures(item.swarm), item.staged_at
    report = TargetReport(item.error_code, item.error_msg or "", item.progress, figures, swarm, staged_at)
    return Result(item.transfer_id, item.container_id, report)


def _swarm_figures(result: SwarmResult | None) -> SwarmFigures | None:
    if result is None:
        return None
    reasons: dict[str, int] = {} if result.fell_back == "none" else {result.fell_back: 1}
    return record_from(SwarmFigures, vars(result), fallbacks=len(reasons), hosts=1, fallback_reasons=reasons)


def _transfer_answer(offer: OfferedTransfer) -> TransferAnswer:
    entry = offer.entry
    until = iso(datetime.fromtimestamp(entry.until, UTC)) if entry.activate_at else None
    return TransferAnswer.model_validate(
        view_of(entry)
        | {"transfer_id": offer.transfer_id, "container_id": entry.target.container_id}
        | {"url": offer.url, "expires_at": offer.expires_at}
        | {"spread_s": entry.spread_s or None, "activate_until": until, "staged_at": entry.state.staged_at}
        | {"swarm": offer.swarm or None}
    )
