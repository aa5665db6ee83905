"""The payloads of requests, each type its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from tidegate.errors import Invalid
from tidegate.web.schemas import Body, FileName, FilePath, FileSize, Number, Signature, Text

Url = Annotated[str, Field(min_length=1, max_length=4096)]
CREDENTIAL_NAME = r"^[A-Za-z0-9_.-]{1,100}$"
Glob = Annotated[str, Field(min_length=1, max_length=200)]
CredentialName = Annotated[str, Field(pattern=CREDENTIAL_NAME)]


class PolitenessBody(Body):
    """How gently a source is read; what is left out has no limit but the operator's."""

    connections: (
        Annotated[int, Field(ge=1, le=16, description="at once, for one file; more than 4 count as 4")] | None
    ) = None
    bytes_per_s: Annotated[int, Field(ge=1024, le=10**12, description="of one file")] | None = None
    delay_s: Annotated[float, Field(ge=0, le=3600, description="seconds between requests")] | None = None
    host_downloads: (
        Annotated[int, Field(ge=1, le=32, description="downloads of the project from the host at once")] | None
    ) = None


Mirrors = Annotated[
    list[Url],
    Field(max_length=10, description="other addresses of the same file: used where the first fails or is slow"),
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
    file_id: Annotated[Text, Field(description="a zip or tar (plain, gzip, bzip2, xz) of the library")]
    file_path: Annotated[FilePath, Field(description="the folder that the archive's paths are put under")]
    include: Annotated[list[Glob], Field(max_length=100, description="take only what one of these globs matches")] = []
    exclude: Annotated[list[Glob], Field(max_length=100)] = []


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
    try:
        return _PAYLOADS[type].model_validate(payload).model_dump(exclude_none=True)
    except ValidationError as error:
        fields = [
            {"loc": ["body", "payload", *found["loc"]], "msg": found["msg"]}
            for found in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        named = ", ".join(".".join(str(part) for part in field["loc"]) for field in fields)
        raise Invalid(f"not valid: {named}", errors=fields) from None  # type: ignore[arg-type]
