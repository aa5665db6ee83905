"""The ways in which AWS goes wrong, and which calls each of them can meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The function dies before the call or after it took effect; the call is throttled; the function stalls there.
BEFORE, AFTER, THROTTLED, LATE = "before", "after", "throttled", "late"
# An eventually consistent read answers from before the last write, or from before all writes of the last second.
STALE = "stale"
# The call took effect and its answer is lost: botocore sends it again, or gives up after its last attempt.
LOST, UNANSWERED = "lost", "unanswered"
# The call meets a transaction, or a hot item: refused, a moment later taken.
CONFLICT = "conflict"
# Part of a batch is not taken.
PARTIAL = "partial"
# S3 sends no header before botocore's time-out, answers 200 with an error, or asks to slow down.
SLOW_S3 = "slow s3"
# An invocation: refused because too many run; or of a function whose sockets died and whose clock has jumped meanwhile.
CROWDED, FROZEN = "crowded", "frozen"

CRASHES = (BEFORE, AFTER, THROTTLED)
AT_CALLS = (STALE, LOST, UNANSWERED, CONFLICT, PARTIAL, SLOW_S3)
AT_INVOCATIONS = (CROWDED, FROZEN)
HARSH = (*AT_CALLS, *AT_INVOCATIONS)

_READS = ("Get", "Query", "BatchGet", "List", "Describe", "Head", "Scan", "Receive")
_CONFLICTING = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}
_BATCHES = {"BatchWriteItem", "BatchGetItem", "SendMessageBatch", "PublishBatch", "DeleteObjects"}


def is_write(operation: str) -> bool:
    return not operation.startswith(_READS)


def is_eventual(operation: str, arguments: Mapping[str, Any]) -> bool:
    """A read of DynamoDB that may answer what was true before."""
    if operation in ("GetItem", "Query"):
        return not arguments.get("ConsistentRead")
    if operation == "BatchGetItem":
        return not all(asked.get("ConsistentRead") for asked in arguments["RequestItems"].values())
    return False


def modes_of(service: str, operation: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """What can go wrong at this call."""
    found = {*CRASHES, LATE}
    if is_write(operation):
        found |= {LOST, UNANSWERED}
    if service == "dynamodb" and is_eventual(operation, arguments):
        found.add(STALE)
    if service == "dynamodb" and operation in _CONFLICTING:
        found.add(CONFLICT)
    if operation in _BATCHES:
        found.add(PARTIAL)
    if service == "s3":
        found.add(SLOW_S3)
    return frozenset(found)
