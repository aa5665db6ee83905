"""Routes for releases: put revisions, read their state on the hosts, roll back, pause, and delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, Field

from tidegate.app import app
from tidegate.common.sequences import Listed
from tidegate.records import record_from, view_of
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

# How many more requests a change of a release counts as, because at least two looks at its hosts follow it.
CHANGE_REQUESTS = 9
HostState = Literal["current", "staged", "failed", "drifted", "behind", "offline", "gone"]
Status = Literal["rolling", "waiting", "converged", "paused", "failed", "rolled_back"]


def _activation(value: str) -> str:
    return value if value in ("now", "manual") else stored_moment(value)


class ReleaseFileBody(Body, record=FileOrder):
    """A file of the library, by `file_id` or by `file_path` and `signature`, and where it belongs on a host."""


class TargetsBody(Body, record=Selector):
    """The named hosts, and those that are in any of the groups and have all labels."""

    groups: Annotated[list[Group], Field(max_length=20)] = []
    labels: Annotated[dict[Group, LabelValue], Field(max_length=20)] = {}
    agents: Annotated[list[AgentId], Field(max_length=1000)] = []


class HealthBody(Body, record=HealthCheck):
    """A hook or a page; with both, the hook counts."""


class ReleaseBody(
    Body, record=Revision, without=("name", "number", "created_at", "created_by", "rollback_to", "sequence")
):
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
    """A revision never changes. A rollback is a new revision with the content of an older one: numbers only rise."""

    files: list[ReleaseFileAnswer]
    waves: list[ReleaseWave]
    health: HealthAnswer | None = None


class TargetsAnswer(Answer, record=Selector):
    pass


class ReleaseCounts(Answer):
    """Hosts by state, made from the hosts' own reports."""

    desired: Annotated[int, F("how many hosts the release is for")] = 0
    current: Annotated[int, F("hosts that have what they should have")] = 0
    staged: Annotated[int, F("hosts that have the files, and wait for the activation")] = 0
    failed: Annotated[int, F("hosts on which the revision failed")] = 0
    offline: Annotated[int, F("hosts that are not connected, and do not have what they should have")] = 0
    drifted: Annotated[int, F("hosts on which somebody changed a file")] = 0
    behind: Annotated[int, F("hosts that are connected, and do not have what they should have yet")] = 0
    gone: Annotated[int, F("hosts that were not seen for 30 days; they no longer count")] = 0


class ReleaseAnswer(Answer, record=Release):
    status: Status
    targets: TargetsAnswer
    counts: ReleaseCounts


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


router = Router("Releases")
Name = Annotated[str, Path(pattern=NAME, description="lower-case letters, digits and `._-`")]


@router.put("/v1/releases/<name>", scope="write", summary="Put a revision of a release", status_code=201)
def put_release(name: Name, body: ReleaseBody) -> Response[ReleaseAnswer]:
    caller = router.caller
    saved, is_new = releases.put(
        app().releases,
        caller.project_id,
        record_from(Revision, vars(body) | {"files": ()}, name=name, number=0),
        [record_from(FileOrder, vars(file)) for file in body.files],
        record_from(Selector, vars(body.targets)),
        caller.key_id,
        is_admin=caller.is_admin,
        keeps="keep" in body.model_fields_set,
    )
    return _changed(saved, 201 if is_new else 200)


@router.get("/v1/releases", scope="read", summary="List releases")
def list_releases(limit: Limit = 20, cursor: Cursor = None) -> ReleaseList:
    page = app().releases.store.list(router.caller.project_id, limit, cursor)
    return ReleaseList(items=[_release_answer(release) for release in page.items], next_cursor=page.next_cursor)


@router.get("/v1/releases/<name>", scope="read", summary="Get a release")
def show_release(name: Name) -> ReleaseDetail:
    release, revision, counts = releases.show(app().releases, router.caller.project_id, name)
    whole = (
        _release_answer(release).model_dump()
        | RevisionAnswer.model_validate(revision).model_dump()
        | {"counts": counts}
    )
    return ReleaseDetail.model_validate(whole | {"created_at": release.created_at})


@router.get("/v1/releases/<name>/revisions", scope="read", summary="List the revisions of a release")
def list_revisions(name: Name, limit: Limit = 20, cursor: Cursor = None) -> RevisionList:
    r, project_id = app().releases, router.caller.project_id
    r.store.require(project_id, name)
    page = r.store.revisions(project_id, name, limit, cursor)
    return RevisionList.model_validate(page)


@router.get("/v1/releases/<name>/revisions/<number>", scope="read", summary="Get a revision")
def show_revision(name: Name, number: Annotated[int, Path(ge=1, le=10**9)]) -> RevisionAnswer:
    r, project_id = app().releases, router.caller.project_id
    r.store.require(project_id, name)
    return RevisionAnswer.model_validate(r.store.revision(project_id, name, number))


@router.get("/v1/releases/<name>/hosts", scope="read", summary="List the hosts of a release")
def list_hosts(
    name: Name, state: Annotated[HostState | None, Query()] = None, limit: Limit = 20, cursor: Cursor = None
) -> ReleaseHosts:
    return _hosts(name, releases.hosts(app().releases, router.caller.project_id, name, state, limit, cursor))


@router.get("/v1/releases/<name>/drift", scope="read", summary="List hosts whose files were changed")
def list_drift(name: Name, limit: Limit = 20, cursor: Cursor = None) -> ReleaseHosts:
    return _hosts(name, releases.drift(app().releases, router.caller.project_id, name, limit, cursor))


@router.post("/v1/releases/<name>/rollback", scope="write", summary="Roll back a release", status_code=202)
def roll_back(name: Name, body: RollbackBody | None = None) -> Response[ReleaseAnswer]:
    caller, to = router.caller, body.to if body else None
    return _changed(releases.roll_back(app().releases, caller.project_id, name, to, caller.key_id))


@router.post("/v1/releases/<name>/pause", scope="write", summary="Pause a release", status_code=202)
def pause(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return _changed(releases.pause(app().releases, caller.project_id, name, caller.key_id))


@router.post("/v1/releases/<name>/resume", scope="write", summary="Resume a release", status_code=202)
def resume(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return _changed(releases.resume(app().releases, caller.project_id, name, caller.key_id))


@router.post("/v1/releases/<name>/activate", scope="write", summary="Activate a revision", status_code=202)
def activate(name: Name) -> Response[ReleaseAnswer]:
    caller = router.caller
    return _changed(releases.activate(app().releases, caller.project_id, name, caller.key_id))


@router.post("/v1/releases/<name>/gate", scope="write", summary="Pass or fail the present wave", status_code=202)
def judge(name: Name, body: GateBody) -> Response[ReleaseAnswer]:
    caller, reason = router.caller, body.reason or ""
    judged = releases.judge(app().releases, caller.project_id, name, body.pass_, reason, caller.key_id)
    return _changed(judged)


@router.delete("/v1/releases/<name>", scope="write", summary="Delete a release", status_code=204)
def remove(name: Name) -> Response[Any]:
    caller = router.caller
    releases.remove(app().releases, caller.project_id, name, caller.key_id)
    return answer(None, 204)


def _changed(release: Release, status: int = 202) -> Response[ReleaseAnswer]:
    """Returns the answer to a change of a release.

    The change counts as several requests, because it starts an execution.
    """
    if not router.caller.is_admin:
        app().projects.rate_limiter.charge(release.project_id, CHANGE_REQUESTS)
    return answer(_release_answer(release), status)


def _hosts(name: str, page: Listed[releases.HostLine]) -> ReleaseHosts:
    r, project_id = app().releases, router.caller.project_id
    revision = r.store.revision(project_id, name, r.store.require(project_id, name).desired) if page.items else None
    items = []
    for host, report, goal in page.items:
        found = view_of(report) | {"drift": list(report.drift) or None} if report else {}
        found |= {"revision": host.revision, "desired": goal, "state": host.state, "agent_id": host.agent_id}
        found |= {"wave": wave_of(revision, host.agent_id)} if revision else {}
        items.append(ReleaseHost.model_validate(found))
    return ReleaseHosts(items=items, next_cursor=page.next_cursor)


def _release_answer(release: Release) -> ReleaseAnswer:
    return ReleaseAnswer.model_validate(view_of(release))
