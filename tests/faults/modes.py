"""The kinds of fault (modes), and the calls at which each of them can occur."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The function is killed before the call or after it took effect; the call is throttled; the function stalls at it.
BEFORE, AFTER, THROTTLED, LATE = "before", "after", "throttled", "late"
# An eventually consistent read returns the state before the last write of each item, or before all writes of the last
# second.
STALE, STALE_SECOND = "stale", "stale second"
# The call took effect, but its answer is lost: botocore sends it again, or gives up after its last attempt.
LOST, UNANSWERED = "lost", "unanswered"
# A transaction holds the item: the write is refused for a moment, or for longer than the product tries within one call;
# or the item is written too often.
CONFLICT, LONG_CONFLICT, HOT_ITEM = "conflict", "long conflict", "hot item"
# Part of a batch is not processed.
PARTIAL = "partial"
# S3 sends no header before botocore's time-out, answers 200 with an error in its body, or asks to slow down.
S3_SILENT, S3_ERROR_BODY, S3_SLOW_DOWN = "s3 silent", "s3 error body", "s3 slow down"
# An invocation is refused because too many run; or it finds its sockets closed and its clock minutes later.
CROWDED, FROZEN = "crowded", "frozen"

CRASHES = (BEFORE, AFTER, THROTTLED)
CONFLICTS = (CONFLICT, LONG_CONFLICT, HOT_ITEM)
AT_CALLS = (
    *(STALE, STALE_SECOND, LOST, UNANSWERED),
    *CONFLICTS,
    *(PARTIAL, S3_SILENT, S3_ERROR_BODY, S3_SLOW_DOWN),
)
AT_INVOCATIONS = (CROWDED, FROZEN)
HARSH = (*AT_CALLS, *AT_INVOCATIONS)

_READS = ("Get", "Query", "BatchGet", "List", "Describe", "Head", "Scan", "Receive")
_CONFLICTING = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}
# S3 works on these before it sends a header, and may find an error after it has sent 200.
_LONG_S3 = {"CopyObject", "CompleteMultipartUpload", "UploadPartCopy"}
_BATCHES = {"BatchWriteItem", "BatchGetItem", "SendMessageBatch", "PublishBatch", "DeleteObjects"}


def is_write(operation: str) -> bool:
    return not operation.startswith(_READS)


def is_eventual(operation: str, arguments: Mapping[str, Any]) -> bool:
    """Whether this is an eventually consistent read of DynamoDB."""
    if operation in ("GetItem", "Query"):
        return not arguments.get("ConsistentRead")
    if operation == "BatchGetItem":
        return not all(asked.get("ConsistentRead") for asked in arguments["RequestItems"].values())
    return False


def modes_of(service: str, operation: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """The modes that can occur at this call."""
    found = {*CRASHES, LATE}
    if is_write(operation):
        found |= {LOST, UNANSWERED}
    if service == "dynamodb" and is_eventual(operation, arguments):
        found |= {STALE, STALE_SECOND}
    if service == "dynamodb" and operation in _CONFLICTING:
        found |= set(CONFLICTS)
    if operation in _BATCHES:
        found.add(PARTIAL)
    if service == "s3":
        found.add(S3_SLOW_DOWN)
    if service == "s3" and operation in _LONG_S3:
        found |= {S3_SILENT, S3_ERROR_BODY}
    return frozenset(found)
