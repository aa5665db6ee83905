"""Bodies and answers of files."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tidegate.files.model import MOST_PARTS
from tidegate.web.queue.request_payloads import CredentialName, Mirrors, PolitenessBody, Url
from tidegate.web.queue.schemas import ChannelName
from tidegate.web.schemas import Answer, Body, FileName, FilePath, FileSize, Number, Priority, Signature

Callback = Annotated[str, Field(max_length=300)]
PartNumber = Annotated[int, Field(ge=1, le=MOST_PARTS)]


class FileBody(Body):
    biz_id: Number
    app_id: Number
    file_path: FilePath
    file_name: FileName | None = None
    signature: Signature | None = None
    size: FileSize | None = None
    source_url: Url | None = None
    mirrors: Mirrors = []
    credentials: CredentialName | None = None
    politeness: PolitenessBody | None = None
    channel: ChannelName | None = None
    priority: Priority = 5
    multipart: bool = Field(
        default=False, description="upload in parts; files over 64 MiB always are uploaded in parts"
    )
    callback: Callback | None = Field(
        default=None, description="a URL that gets a signed POST when a large upload was verified"
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.source_url is None and (self.credentials or self.channel or self.politeness or self.mirrors):
            raise ValueError(
                "credentials, channel, politeness and mirrors are only allowed with a source_url: leave them out"
            )
        if self.source_url is not None and (self.multipart or self.callback):
            raise ValueError("multipart and callback are only allowed without a source_url: leave them out")
        return self


class PartsBody(Body):
    numbers: list[PartNumber] = Field(min_length=1, max_length=100)


class PartBody(Body):
    number: PartNumber
    etag: str = Field(min_length=1, max_length=200)


class CompleteBody(Body):
    parts: list[PartBody] = Field(default_factory=list, max_length=MOST_PARTS)


class IngestAnswer(Answer):
    file_id: str
    request_id: str


class UploadAnswer(Answer):
    file_id: str
    upload_url: str
    upload_headers: dict[str, str] = Field(description="headers that the PUT must have; send all of them")
    expires_at: str


class PartsPlan(Answer):
    part_size: int = Field(description="bytes of every part except the last")
    parts: int | None = Field(default=None, description="the number of parts; absent if no size was announced")


class MultipartAnswer(Answer):
    file_id: str
    upload: PartsPlan
    expires_at: str


class PartAnswer(Answer):
    number: int
    url: str


class PartsAnswer(Answer):
    parts: list[PartAnswer]


class FileAnswer(Answer):
    file_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    signature: str | None = None
    size: int | None = None
    state: str
    created_at: str
    request_id: str | None = None
    error: str | None = None


class FileList(Answer):
    items: list[FileAnswer]
    next_cursor: str | None = None


class LinkAnswer(Answer):
    url: str
    expires_at: str
