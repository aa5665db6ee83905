"""Deletes uploaded objects so that they cannot come back through a presigned URL."""

from __future__ import annotations

from datetime import datetime

from tidegate.aws.s3_uploads import UploadBucket
from tidegate.files.model import File, may_be_put_again, upload_object
from tidegate.files.open_uploads import OpenUpload, OpenUploads


def discard_upload(objects: UploadBucket, uploads: OpenUploads, upload: File | OpenUpload, now: datetime) -> None:
    """Deletes what was uploaded for a file and is not its content, and then stops counting it. Idempotent.

    Only for a file that can no longer become ready by this object.
    """
    key = upload_object(upload.project_id, upload.file_id)
    if upload.upload_id:
        # Its parts have URLs, but these end with the upload.
        objects.abort_upload(key, upload.upload_id)
        objects.delete(key)
    else:
        delete_uploaded(objects, uploads, upload.project_id, key, now)
    uploads.close(upload.project_id, upload.file_id)


def delete_uploaded(objects: UploadBucket, uploads: OpenUploads, project_id: str, key: str, now: datetime) -> None:
    """Deletes an object. In a project with a quota of bytes, an empty object takes its place while a presigned URL may
    bring it again: the URL's PUT has `If-None-Match: *`, so S3 refuses it then. The daily sweep deletes that object.
    """
    if may_be_put_again(key, now) and uploads.are_limited(project_id):
        objects.put(key, b"")
    else:
        objects.delete(key)
