from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidegate.schemas.base import Answer, Body, FileName, FilePath, Number, Signature


class FileBody(Body):
    biz_id: Number
    app_id: Number
    file_path: FilePath
    file_name: FileName | None = None
    signature: Signature | None = None
    size: Annotated[int, Field(ge=0, le=5 * 1024**4)] | None = None


class UploadAnswer(Answer):
    file_id: str
    upload_url: str
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
