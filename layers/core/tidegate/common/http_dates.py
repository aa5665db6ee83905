"""Dates as HTTP headers and feeds write them (RFC 822 and its successors)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def read_date(text: str | None) -> datetime | None:
    """The moment in UTC; None for text that is no date. A date without a time zone counts as UTC."""
    try:
        found = parsedate_to_datetime(text) if text else None
        if found is None:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    # OverflowError: a year, an hour or a time zone of twenty digits, or a date before year 1 or after year 9999.
    except (TypeError, ValueError, OverflowError):
        return None
