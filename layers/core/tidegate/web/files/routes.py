"""Routes for the files of the library."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.files.library import Announcement
from tidegate.files.model import VERIFYING, part_count
from tidegate.web.files.schemas import (
    CompleteBody,
    FileAnswer,
    FileBody,
    FileList,
    IngestAnswer,
    LinkAnswer,
    MultipartAnswer,
    PartAnswer,
    PartsAnswer,
    PartsBody,
    PartsPlan,
    UploadAnswer,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Number

router = Router()
_TAGS = ["Files"]


@router.post(
    "/v1/files", scope="write", tags=_TAGS, summary="Announce a file", status_code=201, middlewares=[idempotent]
)
def announce(body: FileBody) -> Response[UploadAnswer | MultipartAnswer | IngestAnswer]:
    names = ("biz_id", "app_id", "file_path", "file_name", "signature", "size", "multipart", "callback")
    announced = Announcement(**{name: getattr(body, name) for name in names})
    if body.source_url:
        return answer(_ingested(body, body.source_url, announced), 202)
    caller = router.caller
    if body.callback:
        app().ingest.submit.check_url(caller.project_id, body.callback)
    file, link = app().files.uploads.announce(caller.project_id, announced, who=caller.key_id)
    if file.part_size:
        parts = None if file.size is None else part_count(file.size, file.part_size)
        plan = PartsPlan(part_size=file.part_size, parts=parts)
        return answer(MultipartAnswer(file_id=file.file_id, upload=plan, expires_at=link.expires_at), 201)
    made = UploadAnswer(
        file_id=file.file_id, upload_url=link.url, upload_headers=dict(link.headers), expires_at=link.expires_at
    )
    return answer(made, 201)


def _ingested(body: FileBody, source_url: str, announced: Announcement) -> IngestAnswer:
    caller = router.caller
    file, request = app().ingest.submit.download(
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


@router.post("/v1/files/<file_id>/parts", scope="write", tags=_TAGS, summary="Get upload URLs for parts")
def parts(file_id: str, body: PartsBody) -> PartsAnswer:
    links = app().files.uploads.parts(router.caller.project_id, file_id, body.numbers)
    return PartsAnswer(parts=[PartAnswer(number=link.number, url=link.url) for link in links])


@router.post("/v1/files/<file_id>/complete", scope="write", tags=_TAGS, summary="Verify an upload")
def complete(file_id: str, body: CompleteBody | None = None) -> Response[FileAnswer]:
    caller = router.caller
    uploaded = [(part.number, part.etag) for part in body.parts] if body else []
    file = app().files.uploads.complete(caller.project_id, file_id, uploaded, who=caller.key_id)
    return answer(FileAnswer.model_validate(file), 202 if file.state == VERIFYING else 200)


@router.delete("/v1/files/<file_id>", scope="write", tags=_TAGS, summary="Delete a file", status_code=204)
def delete(file_id: str) -> Response[Any]:
    app().files.library.delete(router.caller.project_id, file_id, who=router.caller.key_id)
    return answer(None, 204)


@router.get("/v1/files/<file_id>", scope="read", tags=_TAGS, summary="Get a file")
def show(file_id: str) -> FileAnswer:
    return FileAnswer.model_validate(app().files.library.get(router.caller.project_id, file_id))


@router.get("/v1/files", scope="read", tags=_TAGS, summary="List files")
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
    return FileList(items=[FileAnswer.model_validate(file) for file in page.items], next_cursor=page.next_cursor)


@router.get("/v1/files/<file_id>/url", scope="read", tags=_TAGS, summary="Get a download link, valid for 300 s")
def link(file_id: str) -> LinkAnswer:
    return LinkAnswer.model_validate(app().files.library.link(router.caller.project_id, file_id))
