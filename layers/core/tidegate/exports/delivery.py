"""Copies of finished files in the callers' buckets, copied by S3.

The operator allows destinations on two levels: the parameter DeliveryBucket names the buckets for the whole stack,
and a project's `deliver_to` the places in them for this project. Without the second, a tenant could overwrite the
files of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import Invalid
from tidegate.exports.model import Delivery
from tidegate.files.model import content_disposition

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tidegate.projects.model import Project

logger = Logger(service="tidegate", child=True)

NOWHERE = "-"


class Deliveries:
    def __init__(
        self,
        client_of: Callable[[str | None], S3Client],
        source: str,
        allowed: str,
        project_of: Callable[[str], Project],
    ) -> None:
        self._client_of = client_of
        self._source = source
        self.allowed = allowed
        self._project_of = project_of

    def check(self, project_id: str, deliveries: Sequence[Delivery]) -> None:
        """Invalid if a destination is not allowed for this project."""
        for number, each in enumerate(deliveries):
            if self._is_open(each.bucket) and self._is_granted(project_id, f"{each.bucket}/{each.key}"):
                continue
            detail = (
                f"this project may not copy exports to {each.bucket}/{each.key}: an admin can allow it with deliver_to "
                "of PATCH /v1/projects/{project_id}, in a bucket that the parameter DeliveryBucket names"
            )
            raise Invalid(detail, errors=[{"loc": ["body", "deliver", number, "bucket"], "msg": detail}])

    def _is_open(self, bucket: str) -> bool:
        # Never this system's own bucket, which has the files of every project.
        return self.allowed != NOWHERE and bucket != self._source and fnmatchcase(bucket, self.allowed)

    def _is_granted(self, project_id: str, place: str) -> bool:
        return any(fnmatchcase(place, pattern) for pattern in self._project_of(project_id).deliver_to)

    def send(self, project_id: str, deliveries: Sequence[Delivery], result: dict[str, Any]) -> list[dict[str, Any]]:
        """Makes the copies and returns the state of each. A copy that fails does not fail the export."""
        return [self._send(project_id, each, result) for each in deliveries]

    def _send(self, project_id: str, delivery: Delivery, result: dict[str, Any]) -> dict[str, Any]:
        name = str(result["file_name"])
        key = delivery.key + name if delivery.key.endswith("/") else delivery.key
        copy = {"bucket": delivery.bucket, "key": key}
        source_client = self._client_of(None)
        try:
            # Check again: the operator may have withdrawn the bucket or the grant since the order.
            self.check(project_id, [replace(delivery, key=key)])
            head = source_client.head_object(Bucket=self._source, Key=result["key"])
            # `copy` splits files that are too large for one request.
            self._client_of(delivery.region).copy(
                {"Bucket": self._source, "Key": result["key"]},
                delivery.bucket,
                key,
                ExtraArgs={
                    "MetadataDirective": "REPLACE",
                    "ContentType": head["ContentType"],
                    "ContentDisposition": content_disposition(name),
                },
                SourceClient=source_client,
            )
        except Invalid as error:
            return copy | {"state": "failed", "error": error.detail}
        except (ClientError, BotoCoreError) as error:
            logger.warning(
                "a copy of an export could not be delivered", bucket=delivery.bucket, key=key, why=str(error)
            )
            return copy | {"state": "failed", "error": str(error)[:300]}
        return copy | {"state": "delivered"}
