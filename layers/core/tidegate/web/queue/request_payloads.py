"""The payload of each type of request."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from tidegate.web.problems import invalid_fields
from tidegate.web.schemas import Body, FileName, FilePath, FileSize, Number, Signature, Text

Url = Annotated[str, Field(min_length=1, max_length=4096)]
CREDENTIAL_NAME = r"^[A-Za-z0-9_.-]{1,100}$"
Glob = Annotated[str, Field(min_length=1, max_length=200)]
CredentialName = Annotated[str, Field(pattern=CREDENTIAL_NAME)]


class PolitenessBody(Body):
    """Limits on reading a source. A limit that is left out is the operator's."""

    connections: (
        Annotated[int, Field(ge=1, le=16, description="parallel connections for one file; at most 4 are used")] | None
    ) = None
    bytes_per_s: Annotated[int, Field(ge=1024, le=10**12, description="bytes per second for one file")] | None = None
    delay_s: Annotated[float, Field(ge=0, le=3600, description="seconds between two requests")] | None = None
    host_downloads: (
        Annotated[int, Field(ge=1, le=32, description="parallel downloads of the project from this host")] | None
    ) = None


Mirrors = Annotated[
    list[Url],
    Field(max_length=10, description="other URLs of the same file, used if the first one fails or is slow"),
]


class DownloadPayload(Body):
    source_url: Url
    mirrors: Mirrors = []
    politeness: PolitenessBody | None = None
    biz_id: Number = 0
    app_id: Number = 0
    file_path: FilePath
    file_name: FileName | None = None
    signature: Signature | None = None
    size: FileSize | None = None
    credentials: CredentialName | None = None


class AssociatePayload(Body):
    biz_id: Number = 0
    app_id: Number = 0
    file_path: FilePath
    file_name: FileName | None = None
    signature: Signature


class CheckPayload(Body):
    file_id: Text
    source_url: Url | None = None
    credentials: CredentialName | None = None


class ExtractPayload(Body):
    file_id: Annotated[
        Text, Field(description="the archive in the library: zip (stored or deflated) or tar (plain, gzip, bzip2, xz)")
    ]
    file_path: Annotated[FilePath, Field(description="the folder in the library for the extracted files")]
    include: Annotated[
        list[Glob], Field(max_length=100, description="extract only paths that match one of these globs")
    ] = []
    exclude: Annotated[list[Glob], Field(max_length=100, description="skip paths that match one of these globs")] = []


class ScanPayload(Body):
    pass


_PAYLOADS: dict[str, type[Body]] = {
    "download": DownloadPayload,
    "associate": AssociatePayload,
    "check": CheckPayload,
    "scan": ScanPayload,
    "extract": ExtractPayload,
}


def checked_payload(type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload without empty fields. Raises Invalid if it does not fit the type."""
    try:
        return _PAYLOADS[type].model_validate(payload).model_dump(exclude_none=True)
    except ValidationError as error:
        raise invalid_fields(
            {"loc": ("body", "payload", *found["loc"]), "msg": found["msg"]} for found in error.errors()
        ) from None
