from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from tidegate.common.schedules import next_run
from tidegate.errors import Invalid
from tidegate.web.queue.request_payloads import CredentialName, Url
from tidegate.web.schemas import Answer, Body, Number, Text

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def _fires(value: str) -> str:
    try:
        next_run(value, _ANY_TIME)
    except Invalid as error:
        raise ValueError(error.detail) from error
    return value


Schedule = Annotated[str, Field(max_length=200), AfterValidator(_fires)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")]
HeaderValue = Annotated[str, Field(min_length=1, max_length=16_384, pattern=r"^[\t\x20-\x7e\x80-\xff]+$")]


class SubscriptionBody(Body):
    name: Text
    source_url: Url
    schedule: Schedule | None = None
    biz_id: Number = 0
    app_id: Number = 0
    credentials: CredentialName | None = None


class SubscriptionAnswer(Answer):
    subscription_id: str
    name: str
    source_url: str
    schedule: str | None = None
    biz_id: int
    app_id: int
    credentials: str | None = None
    status: str
    create_time: str
    last_scan: str | None = None


class SubscriptionList(Answer):
    items: list[SubscriptionAnswer]
    next_cursor: str | None = None


class CredentialBody(Body):
    headers: Annotated[dict[HeaderName, HeaderValue], Field(min_length=1, max_length=20)]
