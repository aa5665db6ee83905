"""A copy of a finished file into the caller's bucket, copied by S3 itself.

Where copies may go is the operator's decision: the buckets that the parameter DeliveryBucket names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import Invalid
from tidegate.exports.model import Delivery
from tidegate.files.model import content_disposition

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = Logger(service="tidegate", child=True)

NOWHERE = "-"


class Deliveries:
    def __init__(self, client_of: Callable[[str | None], S3Client], source: str, allowed: str) -> None:
        self._client_of = client_of
        self._source = source
        self.allowed = allowed

    def check(self, deliveries: Sequence[Delivery]) -> None:
        for number, each in enumerate(deliveries):
            if self.allowed == NOWHERE or not fnmatchcase(each.bucket, self.allowed):
                said = (
                    f"copies may not go into the bucket {each.bucket}: whoever runs this system allows buckets "
                    "by the parameter DeliveryBucket"
                )
                raise Invalid(said, errors=[{"loc": ["body", "deliver", number, "bucket"], "msg": said}])

    def send(self, deliveries: Sequence[Delivery], result: dict[str, Any]) -> list[dict[str, Any]]:
        """Each with what became of it. The file is there in any case, so a copy that fails does not fail the export."""
        return [self._send(each, result) for each in deliveries]

    def _send(self, delivery: Delivery, result: dict[str, Any]) -> dict[str, Any]:
        name = str(result["file_name"])
        key = delivery.key + name if delivery.key.endswith("/") else delivery.key
        told = {"bucket": delivery.bucket, "key": key}
        own = self._client_of(None)
        try:
            # Looked at again: the operator may have taken a bucket out since.
            self.check([delivery])
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
