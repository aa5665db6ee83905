"""The code and the HTTP status of a failed call to AWS."""

from __future__ import annotations

from botocore.exceptions import ClientError


def code_of(error: ClientError) -> str:
    """The error code of AWS, such as `NoSuchUpload`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status; 0 if the answer has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
