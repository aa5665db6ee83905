"""EventBridge's schedule expressions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common.schedules import check_timezone, following_run, next_run, run_after, run_before
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


def runs_in(zone: str, expression: str, after: str, count: int) -> list[str]:
    """The next runs, as local times of the zone with their offsets."""
    moment, found = datetime.fromisoformat(after).replace(tzinfo=UTC), list[str]()
    for _ in range(count):
        moment = next_run(expression, moment, zone)
        found.append(moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes"))
    return found


def test_time_of_day_is_that_of_the_zone_all_year() -> None:
    daily = "cron(0 2 * * ? *)"
    assert runs_in("Asia/Shanghai", daily, "2026-11-16T17:59", 2) == [
        "2026-11-17T02:00+08:00",
        "2026-11-18T02:00+08:00",
    ]
    assert runs_in("Europe/Berlin", daily, "2026-07-01T12:00", 1) == ["2026-07-02T02:00+02:00"]
    assert runs_in("Europe/Berlin", daily, "2026-12-01T12:00", 1) == ["2026-12-02T02:00+01:00"]


@pytest.mark.parametrize("expression", ["cron(30 2 * * ? *)", "cron(0/20 2 * * ? *)"])
def test_skipped_time_runs_once_right_after_the_gap(expression: str) -> None:
    """Clocks go from 02:00 to 03:00 on 29 March."""
    before, after = runs_in("Europe/Berlin", expression, "2026-03-28T22:00", 2)
    assert before == "2026-03-29T03:00+02:00"
    assert after.startswith("2026-03-30T02:")


def test_repeated_time_runs_once_at_the_first() -> None:
    """Clocks go from 03:00 back to 02:00 on 25 October."""
    assert runs_in("Europe/Berlin", "cron(30 2 * * ? *)", "2026-10-24T22:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


@pytest.mark.parametrize("after", ["2026-03-28T23:10", "2026-10-24T22:10"])
def test_hourly_run_follows_real_hours_through_both_changes(after: str) -> None:
    moments = [datetime.fromisoformat(text) for text in runs_in("Europe/Berlin", "cron(30 * * * ? *)", after, 6)]
    assert {late - early for early, late in pairwise(moments)} == {timedelta(hours=1)}


def test_gap_at_midnight_keeps_the_day() -> None:
    """In Beirut clocks go from 00:00 to 01:00."""
    assert runs_in("Asia/Beirut", "cron(30 0 * * ? *)", "2026-03-28T12:00", 2) == [
        "2026-03-29T01:00+03:00",
        "2026-03-30T00:30+03:00",
    ]


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.integers(0, 59), st.integers(0, 23))
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_daily_run_of_a_zone_occurs_once_a_day(zone: str, moment: datetime, minute: int, hour: int) -> None:
    first = next_run(f"cron({minute} {hour} * * ? *)", moment.replace(tzinfo=UTC), zone)
    second = next_run(f"cron({minute} {hour} * * ? *)", first, zone)
    days = [found.astimezone(ZoneInfo(zone)).date() for found in (first, second)]
    assert days[1] - days[0] == timedelta(days=1)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "asia/shanghai", "../etc/passwd", "localtime", "posixrules"])
def test_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="IANA name"):
        check_timezone(name)


def test_known_time_zones_can_be_read() -> None:
    for name in ("UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires"):
        check_timezone(name)
        assert ZoneInfo(name)


@pytest.mark.parametrize(
    ("expression", "due", "before"),
    [
        ("rate(6 hours)", "2026-11-16T06:00", "2026-11-16T00:00"),
        ("cron(* * * * ? *)", "2026-11-16T06:00", "2026-11-16T05:59"),
        ("cron(0 0 * * ? *)", "2026-11-16T00:00", "2026-11-15T00:00"),
        ("cron(0 9 ? * MON-FRI *)", "2026-11-16T09:00", "2026-11-13T09:00"),
        ("cron(0 0 1 1 ? *)", "2027-01-01T00:00", "2026-01-01T00:00"),
        ("cron(0 0 29 2 ? *)", "2028-02-29T00:00", "2024-02-29T00:00"),
        ("cron(0 0 1 1 ? 2027)", "2027-01-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_run_before_another_is_the_last_earlier_one(expression: str, due: str, before: str) -> None:
    seconds = [int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) for text in (due, before)]
    assert run_before(expression, seconds[0]) == seconds[1]
