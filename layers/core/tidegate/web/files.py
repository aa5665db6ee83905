"""Routes for the files of the library, with their bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any, Self

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import Field, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.errors import InUse
from tidegate.files.library import Announcement, PresignedUrl
from tidegate.files.model import MOST_PARTS, VERIFYING, File, part_count
from tidegate.records import F
from tidegate.web.idempotency import idempotent
from tidegate.web.queue import AppId, BizId, ChannelName, CredentialOption, Mirrors, PolitenessOption, Url
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import (
    Answer,
    Body,
    FileName,
    FilePath,
    FileSize,
    LinkAnswer,
    Number,
    Page,
    Priority,
    Signature,
)

# --- schemas

Callback = Annotated[str, Field(max_length=300)]
PartNumber = Annotated[int, Field(ge=1, le=MOST_PARTS)]
# S3's longest part.
PartLength = Annotated[int, Field(ge=1, le=5 * 1024**3)]


class FileBody(Body):
    biz_id: BizId
    app_id: AppId
    file_path: Annotated[FilePath, F("path of the file in the library")]
    file_name: Annotated[FileName | None, F("name of the file; default: the last part of file_path")] = None
    signature: Annotated[Signature | None, F("SHA-256 that the content must have; without it, it is computed")] = None
    size: Annotated[
        FileSize | None,
        F(
            "bytes that the content must have; over 64 MiB, the file is uploaded in parts. Required for an upload if "
            "the project has the quota `stored_bytes`"
        ),
    ] = None
    source_url: Annotated[Url | None, F("download the content from this URL, instead of uploading it")] = None
    mirrors: Mirrors = []
    credentials: CredentialOption = None
    politeness: PolitenessOption = None
    channel: Annotated[
        ChannelName | None,
        F("channel of the download; default: `requires_cookie` with credentials, otherwise `no_cookie`"),
    ] = None
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
    numbers: Annotated[list[PartNumber], F("numbers of the parts, up to 100")] = Field(min_length=1, max_length=100)
    sizes: list[PartLength] | None = Field(
        default=None,
        description="the length of each of these parts, if the file was announced without `size`: without them, each "
        "part takes 5 GiB of the quota `stored_bytes`, or all the room that is left, for half an hour",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.sizes is not None and len(self.sizes) != len(self.numbers):
            raise ValueError(f"sizes must have one length for each of the {len(self.numbers)} numbers")
        return self


class PartBody(Body):
    number: Annotated[PartNumber, F("number of the part, from 1")]
    etag: Annotated[str, F("the `ETag` header of the answer to the PUT of the part")] = Field(
        min_length=1, max_length=200
    )


class CompleteBody(Body):
    parts: Annotated[list[PartBody], F("for an upload in parts: every part with its ETag")] = Field(
        default_factory=list, max_length=MOST_PARTS
    )


class IngestAnswer(Answer):
    file_id: Annotated[str, F("id of the file in the library")]
    request_id: Annotated[str, F("id of the request in the queue")]


class UploadAnswer(Answer):
    file_id: Annotated[str, F("id of the file in the library")]
    upload_url: Annotated[str, F("PUT the content to this presigned URL, with all of `upload_headers`")]
    upload_headers: dict[str, str] = Field(description="headers that the PUT must have; send all of them")
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


class PartsPlan(Answer):
    part_size: int = Field(description="bytes of every part except the last")
    parts: int | None = Field(default=None, description="the number of parts; absent if no size was announced")


class MultipartAnswer(Answer):
    file_id: Annotated[str, F("id of the file in the library")]
    upload: Annotated[PartsPlan, F("how to split the content into parts")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


class PartAnswer(Answer):
    number: Annotated[int, F("number of the part, from 1")]
    url: Annotated[str, F("a presigned URL, which needs no key")]


class PartsAnswer(Answer):
    parts: Annotated[list[PartAnswer], F("a URL for each part")]


class FileAnswer(Answer, record=File):
    pass


class FileList(Page):
    items: list[FileAnswer]


# --- routes

router = Router("Files")


@router.post("/v1/files", scope="write", summary="Announce a file", status_code=201, middlewares=[idempotent])
def announce(body: FileBody) -> Response[UploadAnswer | MultipartAnswer | IngestAnswer]:
    names = ("biz_id", "app_id", "file_path", "file_name", "signature", "size", "multipart", "callback")
    announced = Announcement(**{name: getattr(body, name) for name in names})
    if body.source_url:
        return answer(_ingested(body, body.source_url, announced), 202)
    caller = router.caller
    if made := made_before():
        return _upload_answer(*app().files.uploads.announced(caller.project_id, made["file_id"]))
    if body.callback:
        from tidegate.ingest.submit import check_url

        check_url(app().ingest, caller.project_id, body.callback)
    return _upload_answer(*app().files.uploads.announce(caller.project_id, announced, who=caller.key_id))


def _upload_answer(file: File, link: PresignedUrl) -> Response[UploadAnswer | MultipartAnswer | IngestAnswer]:
    if file.part_size:
        parts = None if file.size is None else part_count(file.size, file.part_size)
        plan = PartsPlan(part_size=file.part_size, parts=parts)
        return answer(MultipartAnswer(file_id=file.file_id, upload=plan, expires_at=link.expires_at), 201)
    made = UploadAnswer(
        file_id=file.file_id, upload_url=link.url, upload_headers=dict(link.headers), expires_at=link.expires_at
    )
    return answer(made, 201)


def _ingested(body: FileBody, source_url: str, announced: Announcement) -> IngestAnswer:
    from tidegate.ingest.submit import download

    caller = router.caller
    if made := made_before():
        earlier = app().queue.get(caller.project_id, made["request_id"])
        return IngestAnswer(file_id=earlier.payload["file_id"], request_id=earlier.request_id)
    file, request = download(
        app().ingest,
        caller.project_id,
        announced,
        source_url,
        credentials=body.credentials,
        channel=body.channel,
        priority=body.priority,
        mirrors=body.mirrors,
        politeness=body.politeness.model_dump(exclude_none=True) if body.politeness else None,
        who=caller.key_id,
    )
    return IngestAnswer(file_id=file.file_id, request_id=request.request_id)


@router.post("/v1/files/<file_id>/parts", scope="write", summary="Get upload URLs for parts")
def parts(file_id: str, body: PartsBody) -> PartsAnswer:
    links = app().files.uploads.parts(router.caller.project_id, file_id, body.numbers, body.sizes)
    return PartsAnswer(parts=[PartAnswer(number=link.number, url=link.url) for link in links])


@router.post("/v1/files/<file_id>/complete", scope="write", summary="Verify an upload")
def complete(file_id: str, body: CompleteBody | None = None) -> Response[FileAnswer]:
    caller = router.caller
    uploaded = [(part.number, part.etag) for part in body.parts] if body else []
    file = app().files.uploads.complete(caller.project_id, file_id, uploaded, who=caller.key_id)
    return answer(FileAnswer.model_validate(file), 202 if file.state == VERIFYING else 200)


@router.delete("/v1/files/<file_id>", scope="write", summary="Delete a file", status_code=204)
def delete(file_id: str) -> Response[Any]:
    from tidegate.releases.releases import user_of

    project_id = router.caller.project_id
    file = app().files.library.get(project_id, file_id)
    if file.signature and (name := user_of(app().releases, project_id, file.signature)):
        raise InUse(f"the release {name} has this content on its hosts, or may bring it back: delete the release first")
    app().files.library.delete(project_id, file_id, who=router.caller.key_id)
    return answer(None, 204)


@router.get("/v1/files/<file_id>", scope="read", summary="Get a file")
def show(file_id: str) -> FileAnswer:
    return FileAnswer.model_validate(app().files.library.get(router.caller.project_id, file_id))


@router.get("/v1/files", scope="read", summary="List files")
def list_files(
    biz_id: Annotated[Number | None, Query()] = None,
    app_id: Annotated[Number | None, Query()] = None,
    file_path: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> FileList:
    page = app().files.library.list(
        router.caller.project_id, biz_id=biz_id, app_id=app_id, file_path=file_path, limit=limit, cursor=cursor
    )
    return FileList.model_validate(page)


@router.get("/v1/files/<file_id>/url", scope="read", summary="Get a download link, valid for 300 s")
def link(file_id: str) -> LinkAnswer:
    return LinkAnswer.model_validate(app().files.library.link(router.caller.project_id, file_id))
