"""What went wrong in a call to AWS."""

from __future__ import annotations

from botocore.exceptions import ClientError


def code_of(error: ClientError) -> str:
    """AWS's name of the error, such as `NoSuchUpload`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status; 0 if the answer has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
