"""A copy of a finished file into the caller's bucket, copied by S3 itself.

Where copies may go is the operator's decision, twice: the parameter DeliveryBucket names the buckets of the whole
stack, and a project's `deliver_to` says where in them this project may write. Without the second, one tenant could
write over another's reports.
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
        """Invalid for a copy that the operator does not allow this project."""
        for number, each in enumerate(deliveries):
            if self._is_open(each.bucket) and self._is_granted(project_id, f"{each.bucket}/{each.key}"):
                continue
            said = (
                f"this project may not copy exports to {each.bucket}/{each.key}: an admin allows it by deliver_to of "
                "PATCH /v1/projects/{project_id}, in a bucket that the parameter DeliveryBucket names"
            )
            raise Invalid(said, errors=[{"loc": ["body", "deliver", number, "bucket"], "msg": said}])

    def _is_open(self, bucket: str) -> bool:
        # Never our own bucket, however wide the pattern is: it holds every project's files.
        return self.allowed != NOWHERE and bucket != self._source and fnmatchcase(bucket, self.allowed)

    def _is_granted(self, project_id: str, place: str) -> bool:
        return any(fnmatchcase(place, pattern) for pattern in self._project_of(project_id).deliver_to)

    def send(self, project_id: str, deliveries: Sequence[Delivery], result: dict[str, Any]) -> list[dict[str, Any]]:
        """Each with what became of it. The file is there in any case, so a copy that fails does not fail the export."""
        return [self._send(project_id, each, result) for each in deliveries]

    def _send(self, project_id: str, delivery: Delivery, result: dict[str, Any]) -> dict[str, Any]:
        name = str(result["file_name"])
        key = delivery.key + name if delivery.key.endswith("/") else delivery.key
        told = {"bucket": delivery.bucket, "key": key}
        own = self._client_of(None)
        try:
            # Looked at again: the operator may have taken the bucket or the grant away since.
            self.check(project_id, [replace(delivery, key=key)])
            kept = own.head_object(Bucket=self._source, Key=result["key"])
            # In parts where it is larger than one request can copy.
            self._client_of(delivery.region).copy(
                {"Bucket": self._source, "Key": result["key"]},
                delivery.bucket,
                key,
                ExtraArgs={
                    "MetadataDirective": "REPLACE",
                    "ContentType": kept["ContentType"],
                    "ContentDisposition": content_disposition(name),
                },
                SourceClient=own,
            )
        except Invalid as error:
            return told | {"state": "failed", "error": error.detail}
        except (ClientError, BotoCoreError) as error:
            logger.warning(
                "a copy of an export could not be delivered", bucket=delivery.bucket, key=key, why=str(error)
            )
            return told | {"state": "failed", "error": str(error)[:300]}
        return told | {"state": "delivered"}
