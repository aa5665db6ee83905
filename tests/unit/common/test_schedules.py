"""EventBridge's schedule expressions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common.schedules import following_run, next_run, run_after
from tidegate.errors import Invalid

NOW = datetime(2026, 11, 16, 5, 30, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(5 minutes)", "2026-11-16T05:35:20"),
        ("rate(1 hour)", "2026-11-16T06:30:20"),
        ("rate(2 days)", "2026-11-18T05:30:20"),
        ("cron(0 2 * * ? *)", "2026-11-17T02:00:00"),
        ("cron(0/15 * * * ? *)", "2026-11-16T05:45:00"),
        ("cron(30 5 * * ? *)", "2026-11-17T05:30:00"),
        ("cron(0 8 ? * MON-FRI *)", "2026-11-16T08:00:00"),
        ("cron(0 8 ? * 1,7 *)", "2026-11-21T08:00:00"),
        ("cron(0 0 29 2 ? *)", "2028-02-29T00:00:00"),
        ("cron(0 12 1 JAN,JUL ? 2027-2028)", "2027-01-01T12:00:00"),
        ("cron(0 0 1 1 ? 2040)", "2040-01-01T00:00:00"),
    ],
)
def test_next_run(expression: str, expected: str) -> None:
    assert next_run(expression, NOW) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "expression",
    ["", "rate(0 minutes)", "rate(1 week)", "cron(* * * * * *)", "cron(0 25 * * ? *)", "cron(0 0 31 2 ? *)"],
)
def test_schedule_that_never_runs_is_refused(expression: str) -> None:
    with pytest.raises(Invalid):
        next_run(expression, NOW)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)), st.integers(0, 59), st.integers(0, 23))
def test_daily_run_is_within_a_day_and_never_now(moment: datetime, minute: int, hour: int) -> None:
    after = moment.replace(tzinfo=UTC)
    found = next_run(f"cron({minute} {hour} * * ? *)", after)
    assert after < found <= after + timedelta(days=1, minutes=1)
    assert (found.minute, found.hour) == (minute, hour)


def test_one_shot_has_no_run_after_its_moment() -> None:
    once = "cron(33 14 16 11 ? 2026)"
    assert following_run(once, NOW) == datetime(2026, 11, 16, 14, 33, tzinfo=UTC)
    assert following_run(once, datetime(2026, 11, 16, 14, 33, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("expression", "late", "expected"),
    [
        ("rate(1 minute)", 0, 60),
        ("rate(1 minute)", 59, 60),
        ("rate(1 minute)", 60, 120),
        ("rate(1 hour)", 40, 3600),
        ("rate(1 hour)", 5 * 3600 + 40, 6 * 3600),
        ("cron(0/15 * * * ? *)", 40, 900),
        ("cron(0/15 * * * ? *)", 1000, 1800),
    ],
)
def test_late_run_does_not_shift_the_runs_after_it(expression: str, late: int, expected: int) -> None:
    due = datetime(2026, 11, 16, 5, 30, tzinfo=UTC)
    assert run_after(expression, int(due.timestamp()), due + timedelta(seconds=late)) == due.timestamp() + expected


def test_no_run_after_the_last_moment() -> None:
    due = datetime(2026, 11, 16, 14, 33, tzinfo=UTC)
    assert run_after("cron(33 14 16 11 ? 2026)", int(due.timestamp()), due) is None
