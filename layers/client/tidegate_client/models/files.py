"""Files of the library, and how an upload is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tidegate_client.model import Model
from tidegate_client.models.subscriptions import Politeness


class PartsPlan(Model):
    part_size: int
    parts: int | None


class FileCreated(Model):
    file_id: str
    upload: PartsPlan | None
    upload_url: str | None
    upload_headers: dict[str, str] | None
    expires_at: str | None
    request_id: str | None


class File(Model):
    file_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    signature: str | None
    size: int | None
    state: str
    created_at: str
    request_id: str | None
    error: str | None


class Link(Model):
    url: str
    expires_at: str


class FileOptions(TypedDict, total=False):
    """Options of `files.create`. With a `source_url` the file is ingested from there."""

    file_name: str | None
    signature: str | None
    size: int | None
    multipart: bool | None
    callback: str | None
    source_url: str | None
    mirrors: Sequence[str] | None
    channel: str | None
    credentials: str | None
    priority: int | None
    politeness: Politeness | None
