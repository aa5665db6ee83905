"""What each type of request is allowed: its time, its retries, its lane. Configuration may change any of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tidegate.errors import DomainError, Invalid

LONGEST_BACKOFF = 300.0
# A server may ask us to stay away; longer than this is taken for a mistake of its.
LONGEST_RETRY_AFTER = 24 * 3600.0
DAY = 24 * 3600

REQUIRES_COOKIE, NO_COOKIE, EXPORT, BATCH = "requires_cookie", "no_cookie", "export", "batch"


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds throughout. `growth` 1 keeps the delay fixed, 2 doubles it with each retry up to `LONGEST_BACKOFF`."""

    timeout: int
    retries: int
    delay: float
    growth: int = 1
    channel: str = NO_COOKIE
    machine: str = "ingest"
    keep_completed: int = 7 * DAY
    keep_failed: int = 30 * DAY
    # Shown as expired this long after its objects went.
    keep_expired: int = 0

    def backoff(self, retries_used: int, retry_after: float | None = None) -> float:
        delay: float = min(self.delay * self.growth**retries_used, LONGEST_BACKOFF)
        return max(delay, min(retry_after or 0.0, LONGEST_RETRY_AFTER))


POLICIES: Mapping[str, Policy] = {
    "download": Policy(timeout=1800, retries=3, delay=60, growth=2),
    "scan": Policy(timeout=300, retries=2, delay=30),
    "associate": Policy(timeout=120, retries=2, delay=10),
    "check": Policy(timeout=60, retries=1, delay=5),
    # Six hours of an archive's entries, in invocations of fifteen minutes.
    "extract": Policy(timeout=6 * 3600, retries=3, delay=30, growth=2),
    # One invocation reads the whole file, as a hash cannot be carried on: 900 s, and time to be started.
    "verify": Policy(timeout=1800, retries=3, delay=30, growth=2),
    "export": Policy(
        timeout=3600, retries=2, delay=30, growth=2, channel=EXPORT, machine="export", keep_expired=23 * DAY
    ),
    "batch": Policy(timeout=90 * DAY, retries=3, delay=10, growth=2, channel=BATCH, machine="batch"),
}

CAPACITIES: Mapping[str, int] = {REQUIRES_COOKIE: 2, NO_COOKIE: 5, EXPORT: 4, BATCH: 4}


def policies_from(text: str) -> dict[str, Policy]:
    """The defaults with what the deployment changes: `{"download": {"retries": 5}, …}`."""
    changed: dict[str, dict[str, int]] = json.loads(text or "{}")
    known = {field.name for field in fields(Policy)}
    made = dict(POLICIES)
    for kind, values in changed.items():
        if kind not in made or not set(values) <= known:
            raise Invalid(f"request policies: {kind} or one of its fields is unknown")
        made[kind] = replace(made[kind], **values)  # type: ignore[arg-type]
    return made


def capacities_from(text: str) -> dict[str, int]:
    return {**CAPACITIES, **json.loads(text or "{}")}


def retry_delay(policy: Policy, retries_used: int, error: DomainError) -> float | None:
    """Seconds until the next try; None if this error, or the number of tries, is the end. By type, never by text."""
    if not error.retryable or retries_used >= policy.retries:
        return None
    return policy.backoff(retries_used, error.retry_after)
