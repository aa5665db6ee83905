from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tidegate.common.schedules import check_schedule
from tidegate.errors import Invalid
from tidegate.http.credentials import read_origin
from tidegate.web.queue.request_payloads import CredentialName, Url
from tidegate.web.schemas import Answer, Body, Number, Text


def _fires(value: str) -> str:
    try:
        check_schedule(value)
    except Invalid as error:
        raise ValueError(error.detail) from error
    return value


Schedule = Annotated[str, Field(max_length=200), AfterValidator(_fires)]
# They say where a message ends and whom it is for: not a secret, and dangerous in a caller's hand.
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
        raise ValueError(f"{value} cannot be set by a credential")
    return value


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$"), AfterValidator(_no_framing)]
Origin = Annotated[str, Field(max_length=300), AfterValidator(read_origin)]
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
    origins: Annotated[
        list[Origin],
        Field(
            min_length=1, max_length=20, description="the headers go to these only: https://host or https://host:port"
        ),
    ]
