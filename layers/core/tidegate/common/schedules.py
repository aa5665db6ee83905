"""Schedule expressions as EventBridge has them: `rate(5 minutes)` and `cron(0 2 * * ? *)`, in UTC, to the minute."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from tidegate.errors import Invalid

_RATE = re.compile(r"rate\(([1-9]\d{0,4}) (minute|hour|day)s?\)")
_CRON = re.compile(r"cron\((\S+) (\S+) (\S+) (\S+) (\S+) (\S+)\)")
_FIELD = re.compile(r"(\*|\d+(?:-\d+)?)(?:/(\d+))?")
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIRST_YEAR, _LAST_YEAR = 1970, 2199


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None
    years: frozenset[int]

    def on(self, day: date) -> bool:
        """Whether it fires on this day."""
        weekday = day.isoweekday() % 7 + 1
        return (
            day.year in self.years
            and day.month in self.months
            and (self.days is None or day.day in self.days)
            and (self.weekdays is None or weekday in self.weekdays)
        )


def next_run(expression: str, after: datetime) -> datetime:
    """The first moment later than `after` at which the schedule fires. Invalid if there is none."""
    found = following_run(expression, after)
    if found is None:
        raise Invalid(f"{expression} never runs after {after:%Y-%m-%d %H:%M} UTC: choose a later year or day")
    return found


def following_run(expression: str, after: datetime) -> datetime | None:
    """Like `next_run`, but None if the schedule does not fire again."""
    rate = _RATE.fullmatch(expression.strip())
    if rate:
        return after + timedelta(seconds=int(rate[1]) * _SECONDS[rate[2]])
    cron = _parse(expression.strip())
    start = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    day = _first_day(cron, start.date())
    if day == start.date() and (moment := _on(cron, day, start)):
        return moment
    if day == start.date():
        day = _first_day(cron, day + timedelta(days=1))
    return _on(cron, day, start) if day else None


def run_after(expression: str, due_at: int, now: datetime) -> int | None:
    """The next time (seconds since 1970) of a schedule that was due at `due_at`; None if it does not fire again.

    A rate counts from `due_at`, so it does not drift. Runs that were missed are not made up for.
    """
    rate = _RATE.fullmatch(expression.strip())
    if rate:
        period = int(rate[1]) * _SECONDS[rate[2]]
        missed = max(0, int(now.timestamp()) - due_at) // period
        return due_at + (missed + 1) * period
    found = following_run(expression, max(now, datetime.fromtimestamp(due_at, UTC)))
    return int(found.timestamp()) if found else None


def check_schedule(expression: str) -> None:
    """Invalid if the expression cannot be parsed, or never fires, as on 30 February."""
    next_run(expression, datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC))


def _first_day(cron: Cron, start: date) -> date | None:
    """The first day from `start` on that the schedule allows. Skips months that it does not name."""
    for year in sorted(year for year in cron.years if year >= start.year):
        for month in sorted(cron.months):
            for number in range(1, monthrange(year, month)[1] + 1):
                day = date(year, month, number)
                if day >= start and cron.on(day):
                    return day
    return None


def _on(cron: Cron, day: date, start: datetime) -> datetime | None:
    """The first moment of the day, from `start` on, at which the schedule fires; None if there is none."""
    for hour in sorted(cron.hours):
        for minute in sorted(cron.minutes):
            moment = datetime(day.year, day.month, day.day, hour, minute, tzinfo=start.tzinfo)
            if moment >= start:
                return moment
    return None


def _parse(expression: str) -> Cron:
    found = _CRON.fullmatch(expression)
    if not found:
        raise Invalid(
            f"{expression!r} is not a schedule: write rate(5 minutes), or cron(minute hour day month weekday year)"
        )
    minute, hour, day, month, weekday, year = found.groups()
    if (day == "?") == (weekday == "?"):
        raise Invalid(f"{expression!r} is not a schedule: exactly one of day and weekday must be ?")
    return Cron(
        minutes=_values(minute, 0, 59),
        hours=_values(hour, 0, 23),
        days=None if day in ("?", "*") else _values(day, 1, 31),
        months=_values(_named(month, _MONTHS), 1, 12),
        weekdays=None if weekday in ("?", "*") else _values(_named(weekday, _DAYS), 1, 7),
        years=_values(year, _FIRST_YEAR, _LAST_YEAR),
    )


def _named(text: str, names: tuple[str, ...]) -> str:
    for number, name in enumerate(names, 1):
        text = text.upper().replace(name, str(number))
    return text


def _values(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for piece in text.split(","):
        match = _FIELD.fullmatch(piece)
        if not match:
            raise Invalid(f"{piece!r} is not a field of a schedule: write *, 5, 1-5, */15 or a list of these")
        span, step = match[1], int(match[2] or 1)
        first, _, last = span.partition("-")
        start = low if span == "*" else int(first)
        end = high if span == "*" or (match[2] and not last) else int(last or first)
        if not low <= start <= end <= high or step < 1:
            raise Invalid(
                f"{piece!r} is not a field of a schedule: write numbers from {low} to {high}, the smaller one first"
            )
        found.update(range(start, end + 1, step))
    return frozenset(found)
