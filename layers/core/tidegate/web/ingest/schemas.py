"""Bodies and answers of subscriptions and credentials."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tidegate.http.credentials import read_origin
from tidegate.ingest.feeds.choice import template_fault
from tidegate.projects.credential_store import LARGEST_SECRET, secret_text
from tidegate.web.queue.request_payloads import CredentialName, PolitenessBody, Url
from tidegate.web.schemas import Answer, Body, Number, Priority, Schedule, Text

# Headers that control the connection or the framing of a message: they are not secrets, and unsafe to let a caller set.
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


def _template(value: str) -> str:
    fault = template_fault(value)
    if fault:
        raise ValueError(fault)
    return value


Glob = Annotated[str, Field(min_length=1, max_length=300)]
Globs = Annotated[
    list[Glob],
    Field(max_length=50, description="globs such as `*.iso`; one with a slash is matched against the whole path"),
]
PathTemplate = Annotated[
    str,
    Field(max_length=500, description="the path of each file in the library, such as `/podcasts/{year}/{name}`"),
    AfterValidator(_template),
]
Concurrency = Annotated[
    int,
    Field(ge=1, le=16, description="how many of its downloads run in parallel; a change affects new downloads only"),
]
SourceFormat = Annotated[
    Literal["auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap"],
    Field(description="how the source lists its files; `auto` detects it from the answer"),
]


class SubscriptionBody(Body):
    name: Text
    source_url: Url
    schedule: Schedule | None = None
    biz_id: Number = 0
    app_id: Number = 0
    credentials: CredentialName | None = None
    format: SourceFormat = "auto"
    include: Globs = []
    exclude: Globs = []
    file_path: PathTemplate | None = None
    concurrency: Concurrency = 1
    priority: Priority | None = None
    politeness: PolitenessBody | None = None


class SubscriptionChanges(Body):
    """Fields that are left out stay as they are; null removes one."""

    name: Text | None = None
    source_url: Url | None = None
    schedule: Schedule | None = None
    biz_id: Number | None = None
    app_id: Number | None = None
    credentials: CredentialName | None = None
    format: SourceFormat | None = None
    include: Globs | None = None
    exclude: Globs | None = None
    file_path: PathTemplate | None = None
    concurrency: Concurrency | None = None
    priority: Priority | None = None
    politeness: PolitenessBody | None = None

    @model_validator(mode="after")
    def _check_required(self) -> Self:
        needed = ("name", "source_url", "biz_id", "app_id", "format", "include", "exclude", "concurrency")
        removed = [name for name in needed if name in self.model_fields_set and getattr(self, name) is None]
        if removed:
            raise ValueError(f"{', '.join(removed)} cannot be null: leave out what is not to change")
        return self


class PreviewBody(Body):
    source_url: Url
    format: SourceFormat = "auto"
    include: Globs = []
    exclude: Globs = []
    file_path: PathTemplate | None = None


class PreviewEntry(Answer):
    url: str
    file_path: str
    file_name: str
    size: int | None = None
    signature: str | None = None


class PreviewAnswer(Answer):
    """The files that a scan of the source would download now."""

    format: str
    listed: int
    chosen: int
    items: list[PreviewEntry]


class SubscriptionAnswer(Answer):
    subscription_id: str
    name: str
    source_url: str
    schedule: str | None = None
    biz_id: int
    app_id: int
    credentials: str | None = None
    format: str = "auto"
    include: list[str] | None = None
    exclude: list[str] | None = None
    file_path: str | None = None
    concurrency: int = 1
    priority: int | None = None
    politeness: dict[str, int | float] | None = None
    status: str
    create_time: str
    last_scan: str | None = None
    next_run: (
        Annotated[str, Field(description="when the source is scanned next; absent without a schedule, or while paused")]
        | None
    ) = None


class SubscriptionList(Answer):
    items: list[SubscriptionAnswer]
    next_cursor: str | None = None


class CredentialBody(Body):
    headers: Annotated[dict[HeaderName, HeaderValue], Field(min_length=1, max_length=20)]
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


class CredentialAnswer(Answer):
    """A stored credential, without the values of its headers."""

    name: str
    origins: list[str]
    headers: list[str]
    updated_at: str
    updated_by: str


class CredentialList(Answer):
    items: list[CredentialAnswer]
    next_cursor: str | None = None
