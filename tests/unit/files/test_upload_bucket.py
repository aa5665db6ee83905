"""Completing an upload in parts, for each documented answer of S3."""

from __future__ import annotations

from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from tidegate.aws.s3 import UploadBucket
from tidegate.errors import Busy, Invalid


class Refusing:
    """S3 that answers calls with this error. `there`: whether the object exists nevertheless."""

    def __init__(self, code: str, there: bool) -> None:
        self.code, self.there = code, there

    def complete_multipart_upload(self, **_: Any) -> None:
        raise ClientError({"Error": {"Code": self.code}}, "CompleteMultipartUpload")

    def abort_multipart_upload(self, **_: Any) -> None:
        raise ClientError({"Error": {"Code": self.code}}, "AbortMultipartUpload")

    def head_object(self, **_: Any) -> dict[str, Any]:
        if not self.there:
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}}, "HeadObject")  # type: ignore[typeddict-item]
        return {"ContentLength": 7, "ETag": '"e"'}


def complete(code: str, *, there: bool) -> int:
    bucket = UploadBucket(cast(Any, Refusing(code, there)), "files")
    return bucket.complete("content/p/f", "upload", [(1, "e")]).size


@pytest.mark.parametrize(
    "code", ["NoSuchUpload", "PreconditionFailed", "ConditionalRequestConflict", "OperationAborted"]
)
def test_upload_completed_by_another_call_is_found(code: str) -> None:
    assert complete(code, there=True) == 7


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_upload_being_completed_by_another_call_is_busy(code: str) -> None:
    with pytest.raises(Busy, match="still joining"):
        complete(code, there=False)


def test_upload_that_s3_aborted_is_invalid() -> None:
    with pytest.raises(Invalid, match="announce the file again"):
        complete("NoSuchUpload", there=False)


def test_aborting_a_missing_upload_does_nothing() -> None:
    UploadBucket(cast(Any, Refusing("NoSuchUpload", there=False)), "files").abort_upload("content/p/f", "upload")
    with pytest.raises(ClientError):
        UploadBucket(cast(Any, Refusing("AccessDenied", there=True)), "files").abort_upload("content/p/f", "upload")


def test_other_errors_are_raised() -> None:
    with pytest.raises(ClientError):
        complete("AccessDenied", there=True)
