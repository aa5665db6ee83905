"""The policy of each type of request: its time-out, retries, channel and retention. Configuration can change it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tidegate.errors import DomainError, Invalid

LONGEST_BACKOFF = 300.0
# The longest Retry-After of a server that is respected; a longer one is taken for a mistake.
LONGEST_RETRY_AFTER = 24 * 3600.0
DAY = 24 * 3600

REQUIRES_COOKIE, NO_COOKIE, EXPORT, BATCH = "requires_cookie", "no_cookie", "export", "batch"


@dataclass(frozen=True, slots=True)
class Policy:
    """All times are seconds. `growth` 1 keeps the delay fixed, 2 doubles it with each retry up to `LONGEST_BACKOFF`."""

    timeout: int
    retries: int
    delay: float
    growth: int = 1
    channel: str = NO_COOKIE
    machine: str = "ingest"
    keep_completed: int = 7 * DAY
    keep_failed: int = 30 * DAY
    # How long the record is shown as expired after its objects were deleted.
    keep_expired: int = 0

    def backoff(self, retries_used: int, retry_after: float | None = None) -> float:
        delay: float = min(self.delay * self.growth**retries_used, LONGEST_BACKOFF)
        return max(delay, min(retry_after or 0.0, LONGEST_RETRY_AFTER))


POLICIES: Mapping[str, Policy] = {
    "download": Policy(timeout=1800, retries=3, delay=60, growth=2),
    "scan": Policy(timeout=300, retries=2, delay=30),
    "associate": Policy(timeout=120, retries=2, delay=10),
    # The time to read the file is added.
    "check": Policy(timeout=60, retries=1, delay=5),
    # Six hours for all entries of an archive, in invocations of at most fifteen minutes.
    "extract": Policy(timeout=6 * 3600, retries=3, delay=30, growth=2),
    # The time to read the file is added: 5 TiB take a day and a half, in invocations of at most fifteen minutes.
    "verify": Policy(timeout=1800, retries=3, delay=30, growth=2),
    "export": Policy(
        timeout=3600, retries=2, delay=30, growth=2, channel=EXPORT, machine="export", keep_expired=23 * DAY
    ),
    "batch": Policy(timeout=90 * DAY, retries=3, delay=10, growth=2, channel=BATCH, machine="batch"),
}

CAPACITIES: Mapping[str, int] = {REQUIRES_COOKIE: 2, NO_COOKIE: 5, EXPORT: 4, BATCH: 4}


def policies_from(text: str) -> dict[str, Policy]:
    """The default policies with the deployment's changes, given as `{"download": {"retries": 5}, …}`."""
    changed: dict[str, dict[str, int]] = json.loads(text or "{}")
    names = {field.name for field in fields(Policy)}
    policies = dict(POLICIES)
    for kind, values in changed.items():
        if kind not in policies:
            raise Invalid(f"request policies: there is no request type {kind}, only {', '.join(POLICIES)}")
        if unknown := set(values) - names:
            raise Invalid(
                f"request policies: {kind} has no {', '.join(sorted(unknown))}, only {', '.join(sorted(names))}"
            )
        policies[kind] = replace(policies[kind], **values)  # type: ignore[arg-type]
    return policies


def capacities_from(text: str) -> dict[str, int]:
    return {**CAPACITIES, **json.loads(text or "{}")}


def retry_delay(policy: Policy, retries_used: int, error: DomainError) -> float | None:
    """Seconds until the next attempt; None if the error is not retryable or no retries are left.

    Decided by the type of the error, never by its text.
    """
    if not error.retryable or retries_used >= policy.retries:
        return None
    return policy.backoff(retries_used, error.retry_after)
