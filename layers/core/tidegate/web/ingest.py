"""Routes for subscriptions, and for the credentials that their sources need."""

from __future__ import annotations

from typing import Annotated, Any, Self

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, Field, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.common.ids import iso
from tidegate.http.guard import check_origins, read_origin
from tidegate.ingest import subscriptions
from tidegate.ingest.download import HostPause
from tidegate.ingest.sources import Selection, SourceUrl, Subscription
from tidegate.ingest.submit import subscription_of
from tidegate.projects.audit import act
from tidegate.projects.secrets import CREDENTIAL_NAME, LARGEST_SECRET, CredentialRecord, secret_text
from tidegate.queue.schedules import ACTIVE, PAUSED
from tidegate.records import declared, view_of
from tidegate.web.idempotency import idempotent
from tidegate.web.queue import PolitenessBody, RequestAnswer, RequestList
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, F, Page, ScheduleChange, ScheduleRun, never_null

# --- schemas

# Headers that control the connection or the framing of a message. They are not secrets, and callers must not set them.
_FRAMING = frozenset(
    [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "proxy-connection",
    ]
)


def _no_framing(value: str) -> str:
    if value.lower() in _FRAMING:
        raise ValueError(f"a credential cannot set the header {value}, which controls the connection: leave it out")
    return value


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$"), AfterValidator(_no_framing)]
Origin = Annotated[str, Field(max_length=300), AfterValidator(read_origin)]
HeaderValue = Annotated[str, Field(min_length=1, max_length=16_384, pattern=r"^[\t\x20-\x7e\x80-\xff]+$")]


# A new subscription has the fields that may be changed later.
_NOT_GIVEN = tuple(name for name, each in declared(Subscription).items() if not each.f.changes)


class SubscriptionBody(Body, record=Subscription, without=_NOT_GIVEN):
    politeness: PolitenessBody | None = None


class SubscriptionChanges(ScheduleChange, changes=Subscription):
    """Fields that are left out stay as they are; null removes one."""

    politeness: PolitenessBody | None = None

    @model_validator(mode="after")
    def _check_required(self) -> Self:
        given = self.model_fields_set
        removed = [name for name in never_null(Subscription) if name in given and getattr(self, name) is None]
        if removed:
            raise ValueError(f"{', '.join(removed)} cannot be null: leave out what is not to change")
        return self


class PreviewBody(Body, record=Selection):
    source_url: SourceUrl
    subscription_id: Annotated[
        str | None, Field(max_length=100, description="also show what a scan of this subscription would do")
    ] = None


class PreviewEntry(Answer):
    url: Annotated[str, F("URL of the file")]
    file_path: Annotated[str, F("path of the file in the library")]
    file_name: Annotated[str, F("name of the file")]
    size: Annotated[int | None, F("size in bytes")] = None
    signature: Annotated[str | None, F("SHA-256 of the content, 64 hexadecimal digits")] = None
    plan: Annotated[str | None, F("with `subscription_id`: `new`, `changed` or `same`, as the list shows it")] = None


class PreviewAnswer(Answer):
    """The files that a scan of the source would download now."""

    format: Annotated[str, F("how the source lists its files")]
    listed: Annotated[int, F("number of files that the source lists")]
    chosen: Annotated[int, F("number of files that a scan would download, after include and exclude")]
    items: Annotated[list[PreviewEntry], F("the first hundred of these files")]
    skipped: Annotated[int, F("entries of the list that cannot be read, and are left out")] = 0
    skipped_entries: Annotated[list[str] | None, F("why the first ten skipped entries cannot be read")] = None
    new: Annotated[int | None, F("with `subscription_id`: files that it has not queued yet")] = None
    changed: Annotated[int | None, F("with `subscription_id`: files that changed, as the list shows it")] = None
    gone: Annotated[int | None, F("with `subscription_id`: files that the source does not list any more")] = None
    gone_entries: Annotated[list[str] | None, F("URLs of the first hundred files that are gone")] = None


class SubscriptionAnswer(Answer, record=Subscription):
    include: list[str] | None = None
    exclude: list[str] | None = None


class SubscriptionList(Page):
    items: list[SubscriptionAnswer]


class ScanRunAnswer(ScheduleRun):
    request_id: Annotated[str | None, F("the scan that was queued")] = None
    request: Annotated[RequestAnswer | None, F("the scan in its current state; absent if it was deleted")] = None


class ScanRunList(Page):
    items: list[ScanRunAnswer]


class CredentialBody(Body):
    headers: Annotated[
        dict[HeaderName, HeaderValue],
        F("names and values of the headers; stored encrypted, and never shown again", min_length=1, max_length=20),
    ]
    origins: Annotated[
        list[Origin],
        Field(
            min_length=1,
            max_length=20,
            description="the only origins that get the headers, as `https://host` or `https://host:port`",
        ),
    ]

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        size = len(secret_text(self.headers, self.origins))
        if size > LARGEST_SECRET:
            raise ValueError(
                f"the credential has {size:,} bytes, but at most {LARGEST_SECRET:,} can be stored: shorten its headers"
            )
        return self


class CredentialAnswer(Answer, record=CredentialRecord):
    """A stored credential, without the values of its headers."""


class CredentialList(Page):
    items: list[CredentialAnswer]


# --- routes

router = Router("Subscriptions")
CredentialInPath = Annotated[str, Path(pattern=CREDENTIAL_NAME)]
_PREVIEWED = 100


def _subscription_answer(subscription: Subscription) -> SubscriptionAnswer:
    shown = {name: value for name, value in view_of(subscription).items() if value != []}
    return SubscriptionAnswer(**shown)


def _politeness(body: SubscriptionBody | SubscriptionChanges) -> dict[str, Any]:
    """Returns the limits that the body sets for reading the source. Leaves out limits that are missing or null."""
    return {"politeness": body.politeness.model_dump(exclude_none=True)} if body.politeness else {}


@router.post(
    "/v1/subscriptions", scope="write", summary="Create a subscription", status_code=201, middlewares=[idempotent]
)
def create(body: SubscriptionBody) -> Response[SubscriptionAnswer]:
    caller = router.caller
    if made := made_before():
        return answer(show(made["subscription_id"]), 201)
    given: dict[str, Any] = {"subscription_id": "", "project_id": caller.project_id, "created_at": ""}
    described = Subscription(**given, **(body.model_dump() | _politeness(body)))
    return answer(_subscription_answer(subscriptions.create(app().ingest, described, who=caller.key_id)), 201)


@router.post("/v1/subscriptions/preview", scope="write", summary="Preview the files of a source")
def preview(body: PreviewBody) -> PreviewAnswer:
    selection = Selection(**body.model_dump(exclude={"source_url", "subscription_id"}))
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        found = subscriptions.preview(app().ingest, project_id, body.source_url, selection)
    entries = found.entries or []
    plan, planned = None, {}
    if body.subscription_id:
        plan = subscriptions.plan_of(app().ingest, project_id, body.subscription_id, found)
        planned = dict.fromkeys((entry.url for entry in entries), "same")
        planned |= dict.fromkeys(plan.new, "new") | dict.fromkeys(plan.changed, "changed")
    items = [
        PreviewEntry(
            url=entry.url,
            file_path=entry.path,
            file_name=entry.name,
            size=entry.size,
            signature=entry.signature,
            plan=planned.get(entry.url),
        )
        for entry in entries[:_PREVIEWED]
    ]
    return PreviewAnswer(
        format=found.format,
        listed=found.listed,
        chosen=len(entries),
        items=items,
        skipped=len(found.skipped),
        skipped_entries=found.first_skipped or None,
        new=len(plan.new) if plan else None,
        changed=len(plan.changed) if plan else None,
        gone=len(plan.gone) if plan else None,
        gone_entries=plan.gone[:_PREVIEWED] if plan and plan.gone else None,
    )


@router.get("/v1/subscriptions", scope="read", summary="List subscriptions")
def list_subscriptions(limit: Limit = 20, cursor: Cursor = None) -> SubscriptionList:
    page = app().ingest.store.list(router.caller.project_id, limit, cursor)
    return SubscriptionList(items=[_subscription_answer(item) for item in page.items], next_cursor=page.next_cursor)


@router.get("/v1/subscriptions/<subscription_id>", scope="read", summary="Get a subscription")
def show(subscription_id: str) -> SubscriptionAnswer:
    return _subscription_answer(subscription_of(app().ingest, router.caller.project_id, subscription_id))


@router.patch("/v1/subscriptions/<subscription_id>", scope="write", summary="Change a subscription")
def change(subscription_id: str, body: SubscriptionChanges) -> SubscriptionAnswer:
    caller = router.caller
    changes = body.model_dump(exclude_unset=True, exclude={"paused", "revision"}) | _politeness(body)
    if body.paused is not None:
        changes["status"] = PAUSED if body.paused else ACTIVE
    return _subscription_answer(
        subscriptions.change(
            app().ingest, caller.project_id, subscription_id, changes, revision=body.revision, who=caller.key_id
        )
    )


@router.post("/v1/subscriptions/<subscription_id>/pause", scope="write", summary="Pause the schedule")
def pause(subscription_id: str) -> SubscriptionAnswer:
    return _switched(subscription_id, paused=True)


@router.post("/v1/subscriptions/<subscription_id>/resume", scope="write", summary="Resume the schedule")
def resume(subscription_id: str) -> SubscriptionAnswer:
    return _switched(subscription_id, paused=False)


def _switched(subscription_id: str, *, paused: bool) -> SubscriptionAnswer:
    project_id, who = router.caller.project_id, router.caller.key_id
    return _subscription_answer(subscriptions.switch(app().ingest, project_id, subscription_id, paused=paused, who=who))


@router.delete(
    "/v1/subscriptions/<subscription_id>",
    scope="write",
    summary="Delete a subscription and cancel its queued requests",
    status_code=204,
)
def delete(subscription_id: str) -> Response[Any]:
    caller = router.caller
    subscriptions.delete(app().ingest, caller.project_id, subscription_id, caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/subscriptions/<subscription_id>/download",
    scope="write",
    summary="Scan the source now",
    status_code=202,
    middlewares=[idempotent],
)
def download(
    subscription_id: str,
    confirm_trash: Annotated[
        int | None,
        Query(ge=1, le=10_000, description="the scan may put so many files that are gone into the trash at once"),
    ] = None,
) -> Response[RequestAnswer]:
    caller = router.caller
    ids = (caller.project_id, subscription_id, caller.key_id)
    if made := made_before():
        request = app().queue.get(caller.project_id, made["request_id"])
    else:
        request = subscriptions.scan_now(app().ingest, *ids, confirm_trash=confirm_trash)
    return answer(RequestAnswer.model_validate(request.view()), 202)


@router.get("/v1/subscriptions/<subscription_id>/tasks", scope="read", summary="List a subscription's requests")
def tasks(subscription_id: str, limit: Limit = 20, cursor: Cursor = None) -> RequestList:
    page = subscriptions.tasks(app().ingest, router.caller.project_id, subscription_id, limit, cursor)
    items = [RequestAnswer.model_validate(item.view()) for item in page.items]
    return RequestList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/subscriptions/<subscription_id>/runs", scope="read", summary="List the scheduled scans")
def runs(subscription_id: str, limit: Limit = 20, cursor: Cursor = None) -> ScanRunList:
    page = subscriptions.runs(app().ingest, router.caller.project_id, subscription_id, limit, cursor)
    return ScanRunList(items=[ScanRunAnswer(**run) for run in page.items], next_cursor=page.next_cursor)


@router.get("/v1/credentials", scope="read", summary="List credentials")
def list_credentials() -> CredentialList:
    found = app().projects.credential_records.list(router.caller.project_id)
    return CredentialList(items=[CredentialAnswer.model_validate(record) for record in found])


@router.put("/v1/credentials/<name>", scope="write", summary="Store a credential", status_code=204)
def put_credential(name: CredentialInPath, body: CredentialBody) -> Response[Any]:
    project_id = router.caller.project_id
    check_origins(body.origins, plain_text=app().projects.projects.get(project_id).allow_private_urls)
    now, who = app().clock(), router.caller.key_id
    record = CredentialRecord(name, body.origins, sorted(body.headers), iso(now), who)
    app().projects.credential_records.put(project_id, record, act(project_id, name, now, who, "credential.put"))
    app().projects.credentials.put(project_id, name, body.headers, body.origins)
    return answer(None, 204)


@router.delete("/v1/credentials/<name>", scope="write", summary="Delete a credential", status_code=204)
def delete_credential(name: CredentialInPath) -> Response[Any]:
    # The secret goes first: a crash in between leaves only a listed name, which can be deleted again.
    caller = router.caller
    app().projects.credentials.delete(caller.project_id, name)
    line = act(caller.project_id, name, app().clock(), caller.key_id, "credential.delete")
    app().projects.credential_records.delete(caller.project_id, name, line)
    return answer(None, 204)


class HostPauseAnswer(Answer, record=HostPause):
    """The project sends no requests to the origin until the pause is over, because it answered with Retry-After."""


class HostPauseList(Answer):
    items: list[HostPauseAnswer]


@router.get("/v1/host-pauses", scope="read", summary="List origins that asked for a pause")
def host_pauses() -> HostPauseList:
    found = app().ingest.host_pauses.list(router.caller.project_id)
    return HostPauseList(items=[HostPauseAnswer.model_validate(pause) for pause in found])


@router.delete("/v1/host-pauses/<origin>", scope="write", summary="End the pause of an origin", status_code=204)
def clear_host_pause(origin: str) -> Response[None]:
    app().ingest.host_pauses.clear(router.caller.project_id, origin, router.caller.key_id)
    return answer(None, 204)
