"""Routes for releases: what should be on which hosts, what is, and the way back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, Field

from tidegate.app import app
from tidegate.distribution.model import Wave
from tidegate.releases import releases
from tidegate.releases.model import (
    MOST_FILES,
    NAME,
    HealthCheck,
    HostReport,
    Release,
    ReleaseFile,
    Revision,
    Selector,
    wave_of,
)
from tidegate.releases.releases import FileOrder
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, F, Page
from tidegate.web.submits import AgentId, Group, LabelValue, WaveBody, rising_waves, stored_moment

HostState = Literal["current", "staged", "failed", "drifted", "behind", "offline", "gone"]
Status = Literal["rolling", "waiting", "converged", "paused", "failed", "rolled_back"]


def _activation(value: str) -> str:
    return value if value in ("now", "manual") else stored_moment(value)


class ReleaseFileBody(Body, record=FileOrder):
    """A file of the library, by `file_id` or by `file_path` and `signature`, and where it belongs on a host."""


class TargetsBody(Body):
    """The named hosts, and those that are in any of the groups and have all labels."""

    groups: Annotated[list[Group], F("hosts in any of these groups", max_length=20)] = []
    labels: Annotated[dict[Group, LabelValue], F("hosts with all of these labels", max_length=20)] = {}
    agents: Annotated[list[AgentId], F("hosts by their ids", max_length=1000)] = []


class HealthBody(Body, record=HealthCheck):
    """A hook or a page; with both, the hook counts."""


class ReleaseBody(Body, record=Revision, without=("name", "number", "created_at", "created_by", "rollback_to")):
    files: Annotated[
        list[ReleaseFileBody], F("the files that should be on the hosts", min_length=1, max_length=MOST_FILES)
    ]
    targets: Annotated[TargetsBody, F("the hosts that it is for")]
    waves: Annotated[list[WaveBody], Field(max_length=10), AfterValidator(rising_waves)] = []
    activate: Annotated[str, Field(max_length=40), AfterValidator(_activation)] = "now"
    health: HealthBody | None = None


class RollbackBody(Body):
    to: Annotated[int | None, F("a revision; default: the last one that passed", ge=1, le=10**9)] = None


class GateBody(Body):
    """The caller's own verdict on the present wave."""

    pass_: Annotated[bool, Field(alias="pass"), F("false: the wave has failed; true: skip its soak time")]
    reason: Annotated[str | None, F("why it failed", max_length=500)] = None


class ReleaseFileAnswer(Answer, record=ReleaseFile, without=("biz_id", "app_id")):
    """A file of a revision."""


class HealthAnswer(Answer, record=HealthCheck):
    """How hosts find out whether they are healthy."""


class ReleaseWave(Answer):
    percent: Annotated[int, F("percent of the hosts in this wave and those before it")]
    wait_s: Annotated[int, F("seconds for which the wave must hold, besides `soak_s`")]
    max_failed_percent: Annotated[int, F("the most hosts of the wave that may fail, in percent")]


class RevisionAnswer(Answer, record=Revision, without=("name",)):
    """Immutable. A rollback is a new revision with the content of an older one, so numbers only rise."""

    files: list[ReleaseFileAnswer]
    waves: list[ReleaseWave]
    health: HealthAnswer | None = None


class TargetsAnswer(Answer):
    groups: Annotated[list[str], F("hosts in any of these groups")]
    labels: Annotated[dict[str, str], F("hosts with all of these labels")]
    agents: Annotated[list[str], F("hosts by their ids")]


class ReleaseCounts(Answer):
    """Hosts by state, made from the hosts' own reports."""

    desired: Annotated[int, F("how many hosts the release is for")] = 0
    current: Annotated[int, F("hosts that have what they should have")] = 0
    staged: Annotated[int, F("hosts that have the files, and wait for the activation")] = 0
    failed: Annotated[int, F("hosts on which the revision failed")] = 0
    offline: Annotated[int, F("hosts that are not connected, and not there yet")] = 0
    drifted: Annotated[int, F("hosts on which somebody changed a file")] = 0
    behind: Annotated[int, F("hosts that are connected, and not there yet")] = 0
    gone: Annotated[int, F("hosts that were not seen for 30 days; they no longer count")] = 0


class ReleaseAnswer(Answer, record=Release, without=("latest",)):
    status: Annotated[Status, F("where the roll-out is")]
    wave: Annotated[int, F("the present wave, from 1")]
    withdrawn: list[int]
    targets: TargetsAnswer
    counts: Annotated[ReleaseCounts, F("hosts by state")]


class ReleaseDetail(ReleaseAnswer, record=Revision, without=("name", "number", "created_by", "rollback_to")):
    """A release with its desired revision."""

    files: list[ReleaseFileAnswer]
    waves: list[ReleaseWave]
    health: HealthAnswer | None = None


class ReleaseList(Page):
    items: list[ReleaseAnswer]


class RevisionList(Page):
    items: list[RevisionAnswer]


class HookResult(Answer):
    """How a hook or a check ended."""

    code: Annotated[int, F("exit code, or HTTP status")]
    output: Annotated[str, F("the end of what it printed, without secrets")] = ""


class ReleaseHost(Answer, record=HostReport, without=("name",)):
    desired: Annotated[int, F("what the host should have now")]
    wave: Annotated[int, F("the wave in which it gets the desired revision, from 1")]
    state: HostState
    hook: HookResult | None = None
    health: HookResult | None = None
    drift: list[str] | None = None
    reported_at: str | None = None


class ReleaseHosts(Page):
    items: list[ReleaseHost]


router = Router()
_TAGS = ["Releases"]
Name = Annotated[str, Path(pattern=NAME, description="lower-case letters, digits and `._-`")]


@router.put("/v1/releases/<name>", scope="write", tags=_TAGS, summary="Put a revision of a release", status_code=201)
def put_release(name: Name, body: ReleaseBody) -> Response[ReleaseAnswer]:
    caller = router.caller
    given = body.model_dump(exclude={"files", "targets"})
    waves, health = given.pop("waves"), given.pop("health")
    order = Revision(
        name=name,
        number=0,
        files=(),
        waves=tuple(Wave(**wave) for wave in waves),
        health=HealthCheck(**health) if health else None,
        **given,
    )
    files = [FileOrder(**file.model_dump()) for file in body.files]
    targets = Selector(groups=tuple(body.targets.groups), labels=body.targets.labels, agents=tuple(body.targets.agents))
    saved, is_new = releases.put(
        app().releases, caller.project_id, order, files, targets, caller.key_id, is_admin=caller.is_admin
    )
    return answer(_shown(saved), 201 if is_new else 200)


@router.get("/v1/releases", scope="read", tags=_TAGS, summary="List releases")
def list_releases(limit: Limit = 20, cursor: Cursor = None) -> ReleaseList:
    page = app().releases.store.list(router.caller.project_id, limit, cursor)
    return ReleaseList(items=[_shown(release) for release in page.items], next_cursor=page.next_cursor)


@router.get("/v1/releases/<name>", scope="read", tags=_TAGS, summary="Get a release")
def show_release(name: Name) -> ReleaseDetail:
    release, revision, counts = releases.show(app().releases, router.caller.project_id, name)
    whole = _shown(release).model_dump() | _revision(revision).model_dump() | {"counts": counts}
    return ReleaseDetail.model_validate(whole | {"created_at": release.created_at})


@router.get("/v1/releases/<name>/revisions", scope="read", tags=_TAGS, summary="List the revisions of a release")
def list_revisions(name: Name, limit: Limit = 20, cursor: Cursor = None) -> RevisionList:
    r, project_id = app().releases, router.caller.project_id
    r.store.require(project_id, name)
    page = r.store.revisions(project_id, name, limit, cursor)
    return RevisionList(items=[_revision(one) for one in page.items], next_cursor=page.next_cursor)


@router.get("/v1/releases/<name>/revisions/<number>", scope="read", tags=_TAGS, summary="Get a revision")
def show_revision(name: Name, number: Annotated[int, Path(ge=1, le=10**9)]) -> RevisionAnswer:
    r, project_id = app().releases, router.caller.project_id
    r.store.require(project_id, name)
    return _revision(r.store.revision(project_id, name, number))


@router.get("/v1/releases/<name>/hosts", scope="read", tags=_TAGS, summary="List the hosts of a release")
def list_hosts(
    name: Name, state: Annotated[HostState | None, Query()] = None, limit: Limit = 20, cursor: Cursor = None
) -> ReleaseHosts:
    return _hosts(name, state, limit, cursor)


@router.get("/v1/releases/<name>/drift", scope="read", tags=_TAGS, summary="List hosts whose files were changed")
def list_drift(name: Name, limit: Limit = 20, cursor: Cursor = None) -> ReleaseHosts:
    return _hosts(name, "drifted", limit, cursor)


@router.post("/v1/releases/<name>/rollback", scope="write", tags=_TAGS, summary="Go back", status_code=202)
def roll_back(name: Name, body: RollbackBody | None = None) -> Response[ReleaseAnswer]:
    caller, to = router.caller, body.to if body else None
    return answer(_shown(releases.roll_back(app().releases, caller.project_id, name, to, caller.key_id)), 202)


@router.post("/v1/releases/<name>/pause", scope="write", tags=_TAGS, summary="Pause a release", status_code=202)
def pause(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return answer(_shown(releases.pause(app().releases, caller.project_id, name, caller.key_id)), 202)


@router.post("/v1/releases/<name>/resume", scope="write", tags=_TAGS, summary="Resume a release", status_code=202)
def resume(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return answer(_shown(releases.resume(app().releases, caller.project_id, name, caller.key_id)), 202)


@router.post("/v1/releases/<name>/activate", scope="write", tags=_TAGS, summary="Activate a revision", status_code=202)
def activate(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return answer(_shown(releases.activate(app().releases, caller.project_id, name, caller.key_id)), 202)


@router.post("/v1/releases/<name>/gate", scope="write", tags=_TAGS, summary="Judge the present wave", status_code=202)
def judge(name: Name, body: GateBody) -> Response[ReleaseAnswer]:
    caller, reason = router.caller, body.reason or ""
    judged = releases.judge(app().releases, caller.project_id, name, body.pass_, reason, caller.key_id)
    return answer(_shown(judged), 202)


@router.delete("/v1/releases/<name>", scope="write", tags=_TAGS, summary="Delete a release", status_code=204)
def remove(name: Name) -> Response[Any]:
    caller = router.caller
    releases.remove(app().releases, caller.project_id, name, caller.key_id)
    return answer(None, 204)


def _hosts(name: str, state: str | None, limit: int, cursor: str | None) -> ReleaseHosts:
    r, project_id = app().releases, router.caller.project_id
    page = releases.hosts(r, project_id, name, state, limit, cursor)
    revision = r.store.revision(project_id, name, r.store.require(project_id, name).desired) if page.items else None
    items = []
    for host, report, goal in page.items:
        said = {"revision": host.revision, "desired": goal, "state": host.state, "agent_id": host.agent_id}
        told = ("reason", "hook", "health", "placed", "checked_at", "reported_at")
        texts = {each: getattr(report, each) for each in told} if report else {}
        drift = list(report.drift) or None if report else None
        said |= {"wave": wave_of(revision, host.agent_id)} if revision else {}
        items.append(ReleaseHost.model_validate(texts | said | {"drift": drift}))
    return ReleaseHosts(items=items, next_cursor=page.next_cursor)


def _revision(revision: Revision) -> RevisionAnswer:
    return RevisionAnswer.model_validate(revision)


def _shown(release: Release) -> ReleaseAnswer:
    shown = {"revision": release.desired, "status": release.shown_status, "wave": release.wave + 1}
    same = ("name", "stable", "reason", "share", "withdrawn", "counts", "created_at", "updated_at")
    parts = {name: getattr(release, name) for name in same} | {"targets": release.targets.shown()}
    return ReleaseAnswer.model_validate(parts | shown | {"withdrawn": list(release.withdrawn)})
