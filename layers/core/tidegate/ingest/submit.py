"""Submits ingest requests: checks the URL, chooses the channel, and creates the request together with its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidegate.common.ids import new_id
from tidegate.errors import Invalid, RecordNotFound, WrongState
from tidegate.files.library import Announcement, new_file
from tidegate.files.model import COMING, READY, File, seconds_to_read
from tidegate.ingest.sources import DELETING, Subscription
from tidegate.projects.audit import SYSTEM
from tidegate.queue.model import DEFAULT_PRIORITY, NO_COOKIE, PRIORITIES, REQUIRES_COOKIE, Request

if TYPE_CHECKING:
    from tidegate.ingest import Ingest


def check_url(ingest: Ingest, project_id: str, *urls: str) -> bool:
    """Raises UrlNotAllowed if the project may not fetch one of the URLs. Returns the project's `allow_private_urls`."""
    allow_private = ingest.projects.get(project_id).allow_private_urls
    refused = ingest.http.refused_urls(urls, allow_private=allow_private, project_id=project_id)
    if refused:
        raise next(iter(refused.values()))
    return allow_private


def download(
    ingest: Ingest,
    project_id: str,
    announced: Announcement,
    source_url: str,
    *,
    credentials: str | None = None,
    channel: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    subscription_id: str | None = None,
    who: str = SYSTEM,
    fingerprint: str | None = None,
    mirrors: Sequence[str] = (),
    politeness: Mapping[str, Any] | None = None,
    compared: bool = False,
    extra_writes: Sequence[Any] = (),
    **more: Any,
) -> tuple[File, Request]:
    """Creates a file and the request that fetches it, and returns both.

    `fingerprint`: that of the entry, if a scan found the URL in a list. `compared`: later scans will ask the server if
    the file has changed.
    """
    check_url(ingest, project_id, source_url, *mirrors)
    payload = {
        "source_url": source_url,
        "credentials": credentials,
        "fingerprint": fingerprint,
        "mirrors": [*mirrors] or None,
        "politeness": politeness,
        "compared": compared or None,
    }
    return _with_file(
        ingest,
        "download",
        project_id,
        announced,
        payload,
        channel,
        priority,
        subscription_id,
        who,
        extra_writes,
        **more,
    )


def submit(
    ingest: Ingest,
    project_id: str,
    type: str,
    payload: Mapping[str, Any],
    *,
    dedupe_key: str | None = None,
    **options: Any,
) -> Request:
    """Submits a request of any type and returns it. The payload must have been validated for its type.

    `options` are those of `_submit`. If an unfinished request has the `dedupe_key`, submits nothing and returns that
    one.
    """
    if dedupe_key is None:
        return _submit(ingest, project_id, type, payload, **options)
    return ingest.queue.submit_once(
        project_id,
        dedupe_key,
        lambda request_id, write: _submit(
            ingest, project_id, type, payload, request_id=request_id, extra_writes=[write], **options
        ),
    )


def _submit(
    ingest: Ingest,
    project_id: str,
    type: str,
    payload: Mapping[str, Any],
    *,
    subscription_id: str | None = None,
    priority: int | None = None,
    channel: str | None = None,
    who: str = SYSTEM,
    **more: Any,
) -> Request:
    """Submits a request of any type and returns it. `more` may be request_id, extra_writes and not_before."""
    priority = priority or PRIORITIES.get(type, DEFAULT_PRIORITY)
    if subscription_id:
        subscription_of(ingest, project_id, subscription_id)
    if type in ("check", "extract"):
        return _of_file(ingest, type, project_id, payload, subscription_id, priority, channel, who, **more)
    if type == "scan":
        scanned = str(subscription_id or "")
        return scan(ingest, project_id, scanned, priority=priority, channel=channel, who=who, **more)
    names = ("biz_id", "app_id", "file_path", "file_name", "signature", "size")
    announced = Announcement(**{name: payload.get(name) for name in names})  # type: ignore[arg-type]
    if type == "associate":
        made = _with_file(ingest, type, project_id, announced, {}, channel, priority, subscription_id, who, **more)
        return made[1]
    return download(
        ingest,
        project_id,
        announced,
        str(payload["source_url"]),
        credentials=payload.get("credentials"),
        channel=channel,
        priority=priority,
        mirrors=payload.get("mirrors") or (),
        politeness=payload.get("politeness"),
        subscription_id=subscription_id,
        who=who,
        **more,
    )[1]


def scan(
    ingest: Ingest,
    project_id: str,
    subscription_id: str,
    *,
    priority: int = DEFAULT_PRIORITY,
    channel: str | None = None,
    who: str = SYSTEM,
    request_id: str | None = None,
    extra_writes: Sequence[Any] = (),
    not_before: datetime | None = None,
    by_schedule: bool = False,
    confirm_trash: int | None = None,
) -> Request:
    """Submits a scan of a subscription and returns it."""
    if not subscription_id:
        raise Invalid(
            "a scan needs a subscription_id: name the subscription to scan",
            errors=[{"loc": ["body", "subscription_id"], "msg": "required"}],
        )
    subscription = subscription_of(ingest, project_id, subscription_id)
    payload: dict[str, Any] = {"credentials": subscription.credentials, "name": subscription.name}
    payload |= {"by_schedule": True} if by_schedule else {}
    payload |= {"confirm_trash": confirm_trash} if confirm_trash else {}
    return ingest.queue.submit(
        project_id,
        "scan",
        _channel(ingest, channel, subscription.credentials),
        payload,
        priority,
        subscription_id,
        request_id,
        extra_writes=extra_writes,
        not_before=not_before,
        who=who,
    )


def _of_file(
    ingest: Ingest,
    type: str,
    project_id: str,
    payload: Mapping[str, Any],
    subscription_id: str | None,
    priority: int,
    channel: str | None,
    who: str,
    **more: Any,
) -> Request:
    """Submits a check or an extraction of an existing file and returns it."""
    file = ingest.files.require(project_id, str(payload["file_id"]))
    if type == "extract" and file.state != READY:
        raise WrongState(f"the archive {file.file_id} is {file.state}: extract it when it is ready")
    if payload.get("source_url"):
        check_url(ingest, project_id, str(payload["source_url"]))
    chosen = _channel(ingest, channel, payload.get("credentials"))
    if type == "check":
        more["timeout"] = ingest.queue.policy(type).timeout + seconds_to_read(file.size)
    return ingest.queue.submit(project_id, type, chosen, payload, priority, subscription_id, who=who, **more)


def _with_file(
    ingest: Ingest,
    type: str,
    project_id: str,
    announced: Announcement,
    payload: Mapping[str, Any],
    channel: str | None,
    priority: int,
    subscription_id: str | None,
    who: str,
    extra_writes: Sequence[Any] = (),
    *,
    request_id: str | None = None,
    not_before: datetime | None = None,
    lane: int = 0,
) -> tuple[File, Request]:
    """Creates a file and its request in one transaction and returns both."""
    now = ingest.clock()
    request_id = request_id or new_id("req", now)
    file = new_file(project_id, announced, COMING, now)
    source_url = payload.get("source_url")
    file = replace(file, request_id=request_id, source_url=source_url, subscription_id=subscription_id)
    request = ingest.queue.submit(
        project_id,
        type,
        _channel(ingest, channel, payload.get("credentials")),
        {**{name: value for name, value in payload.items() if value is not None}, "file_id": file.file_id}
        | {"name": file.file_name},
        priority,
        subscription_id,
        request_id,
        extra_writes=[*ingest.files.coming_writes(file, brings_content=type == "download"), *extra_writes],
        not_before=not_before,
        lane=lane,
        who=who,
    )
    return file, request


def _channel(ingest: Ingest, channel: str | None, credentials: object) -> str:
    """Returns the given channel, after checking that it exists. If `channel` is None, returns the default channel."""
    if channel:
        ingest.queue.channels.require(channel)
        return channel
    return REQUIRES_COOKIE if credentials else NO_COOKIE


def subscription_of(ingest: Ingest, project_id: str, subscription_id: str) -> Subscription:
    """Returns the subscription. RecordNotFound if there is no such subscription, or if it is being deleted."""
    found = ingest.store.get(project_id, subscription_id)
    if found is None or found.status == DELETING:
        raise RecordNotFound(f"this project has no subscription with the id {subscription_id}")
    return found
