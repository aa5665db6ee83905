"""The library of files."""

from __future__ import annotations

from typing import Annotated

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.files.library import Announcement
from tidegate.web.files.schemas import FileAnswer, FileBody, FileList, IngestAnswer, LinkAnswer, UploadAnswer
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Number

router = Router()
_TAGS = ["Files"]


@router.post(
    "/v1/files", scope="write", tags=_TAGS, summary="Announce a file", status_code=201, middlewares=[idempotent]
)
def announce(body: FileBody) -> Response[UploadAnswer | IngestAnswer]:
    """A presigned PUT; or, with a `source_url`, 202 and the request that brings it."""
    announced = Announcement(body.biz_id, body.app_id, body.file_path, body.file_name, body.signature, body.size)
    if body.source_url:
        return answer(_ingested(body, body.source_url, announced), 202)
    caller = router.caller
    file, link = app().files.library.announce(caller.project_id, announced, who=caller.key_id)
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
        who=caller.key_id,
    )
    return IngestAnswer(file_id=file.file_id, request_id=request.request_id)


@router.post("/v1/files/<file_id>/complete", scope="write", tags=_TAGS, summary="Check an upload and keep it")
def complete(file_id: str) -> FileAnswer:
    caller = router.caller
    return FileAnswer.model_validate(app().files.library.complete(caller.project_id, file_id, who=caller.key_id))


@router.get("/v1/files/<file_id>", scope="read", tags=_TAGS, summary="One file")
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


@router.get("/v1/files/<file_id>/url", scope="read", tags=_TAGS, summary="A link that lives 300 s")
def link(file_id: str) -> LinkAnswer:
    return LinkAnswer.model_validate(app().files.library.link(router.caller.project_id, file_id))
