from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tidegate.web.queue.request_payloads import CredentialName, Url
from tidegate.web.queue.schemas import ChannelName
from tidegate.web.schemas import Answer, Body, FileName, FilePath, FileSize, Number, Priority, Signature


class FileBody(Body):
    biz_id: Number
    app_id: Number
    file_path: FilePath
    file_name: FileName | None = None
    signature: Signature | None = None
    size: FileSize | None = None
    source_url: Url | None = None
    credentials: CredentialName | None = None
    channel: ChannelName | None = None
    priority: Priority = 5

    @model_validator(mode="after")
    def _only_with_a_source(self) -> Self:
        if self.source_url is None and (self.credentials or self.channel):
            raise ValueError("credentials and channel are for files with a source_url")
        return self


class IngestAnswer(Answer):
    file_id: str
    request_id: str


class UploadAnswer(Answer):
    file_id: str
    upload_url: str
    upload_headers: dict[str, str] = Field(description="what the PUT must carry, all of it")
    expires_at: str


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
