"""Retries for writes that DynamoDB refuses because another transaction holds the same item."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import ClientError

from tidegate.errors import Busy

T = TypeVar("T")
# Many submits of one project update its counters at once, and the last of them waits for seconds.
_TRIES = 9
_LONGEST_PAUSE = 0.5
_CONFLICTS = frozenset({"TransactionConflictException", "TransactionInProgressException"})
_TEMPORARY = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


def reasons_of(error: ClientError) -> list[str | None]:
    """For each write of a cancelled transaction, why it was refused; None for a write that was not."""
    return [reason.get("Code") for reason in error.response.get("CancellationReasons", [])]


def _is_temporary(error: ClientError) -> bool:
    """Whether a retry may succeed: no condition failed, and the other transaction will end."""
    code = error.response.get("Error", {}).get("Code")
    if code == "TransactionCanceledException":
        reasons = set(reasons_of(error))
        return bool(reasons & _TEMPORARY) and "ConditionalCheckFailed" not in reasons
    return code in _CONFLICTS


def settled(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """The result of `call`, retried with jittered back-off while other transactions hold the same items."""
    for attempt in range(_TRIES):
        try:
            return call()
        except ClientError as error:
            if not _is_temporary(error):
                raise
        sleep(random.uniform(0.5, 1.5) * min(0.02 * 2**attempt, _LONGEST_PAUSE))  # noqa: S311
    raise Busy("too many requests change this record at once: try again in a few seconds")
