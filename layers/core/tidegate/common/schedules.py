"""Schedule expressions as EventBridge has them: `rate(5 minutes)` and `cron(0 2 * * ? *)`, in a time zone."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import product
from zoneinfo import ZoneInfo

from tidegate.errors import Invalid

_RATE = re.compile(r"rate\(([1-9]\d{0,4}) (minute|hour|day)s?\)")
_CRON = re.compile(r"cron\((\S+) (\S+) (\S+) (\S+) (\S+) (\S+)\)")
_FIELD = re.compile(r"(\*|\d+(?:-\d+)?)(?:/(\d+))?")
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIRST_YEAR, _LAST_YEAR = 1970, 2199
UTC_NAME = "UTC"


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None
    years: frozenset[int]

    def on(self, day: date) -> bool:
        """Whether the schedule fires on this day."""
        weekday = day.isoweekday() % 7 + 1
        return (
            day.year in self.years
            and day.month in self.months
            and (self.days is None or day.day in self.days)
            and (self.weekdays is None or weekday in self.weekdays)
        )


def next_run(expression: str, after: datetime, timezone: str = UTC_NAME) -> datetime:
    """Returns the first moment later than `after` at which the schedule fires.

    Raises Invalid if there is no such moment.
    """
    found = following_run(expression, after, timezone)
    if found is None:
        raise Invalid(f"{expression} never runs after {after:%Y-%m-%d %H:%M} UTC: choose a later year or day")
    return found


def following_run(expression: str, after: datetime, timezone: str = UTC_NAME) -> datetime | None:
    """Returns the first moment later than `after` at which the schedule fires; None if it does not fire again."""
    if period := _period(expression):
        return after + timedelta(seconds=period)
    cron, zone = _parse(expression.strip()), ZoneInfo(timezone)
    day = _first_day(cron, after.astimezone(zone).date())
    while day:
        moment = min((each for each in _moments(cron, day, zone) if each > after), default=None)
        if moment:
            return moment
        day = _first_day(cron, day + timedelta(days=1))
    return None


def run_after(expression: str, due_at: int, now: datetime, timezone: str = UTC_NAME) -> int | None:
    """Returns the next time (seconds since 1970) of a schedule that was due at `due_at`; None if there is none.

    A rate counts from `due_at`, so it does not drift. Missed runs are skipped.
    """
    if period := _period(expression):
        missed = max(0, int(now.timestamp()) - due_at) // period
        return due_at + (missed + 1) * period
    found = following_run(expression, max(now, datetime.fromtimestamp(due_at, UTC)), timezone)
    return int(found.timestamp()) if found else None


def run_before(expression: str, due_at: int, timezone: str = UTC_NAME) -> int:
    """Returns the last time before `due_at` at which the schedule would have fired.

    If there is none, returns `due_at`.
    """
    if period := _period(expression):
        return due_at - period
    due = datetime.fromtimestamp(due_at, UTC)
    # Try short spans before longer ones, so that a schedule of every minute is not followed through years.
    for hours in (0.1, 3, 50, 200, 1500, 20_000, 80_000):
        moment, last = due - timedelta(hours=hours), None
        while (following := following_run(expression, moment, timezone)) and following < due:
            moment = last = following
        if last:
            return int(last.timestamp())
    return due_at


def check_schedule(expression: str) -> None:
    """Raises Invalid if the expression cannot be parsed or never fires, such as one for 30 February."""
    next_run(expression, datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC))


def check_timezone(name: str) -> None:
    """Raises Invalid if IANA has no such time zone. Zones that only this machine has are refused, too."""
    if name not in _zone_names():
        raise Invalid(f"{name!r} is not a time zone: use an IANA name such as Asia/Shanghai, or UTC")


@cache
def _zone_names() -> frozenset[str]:
    # Imported here, because it takes milliseconds, and only new schedules need it.
    from importlib import resources

    return frozenset((resources.files("tzdata") / "zones").read_text().split())


def _period(expression: str) -> int | None:
    """Returns the seconds between two runs of a rate; None for cron."""
    rate = _RATE.fullmatch(expression.strip())
    return int(rate[1]) * _SECONDS[rate[2]] if rate else None


def _first_day(cron: Cron, start: date) -> date | None:
    """Returns the first day from `start` on at which the schedule fires; None if there is none."""
    for year in sorted(year for year in cron.years if year >= start.year):
        for month in sorted(cron.months):
            for number in range(1, monthrange(year, month)[1] + 1):
                day = date(year, month, number)
                if day >= start and cron.on(day):
                    return day
    return None


def _moments(cron: Cron, day: date, zone: ZoneInfo) -> Iterator[datetime]:
    """Yields the moments, in UTC, at which the schedule fires on this day of the time zone.

    If daylight saving skips a time of day, the schedule fires right after the gap. If a time of day occurs twice, the
    schedule fires only at the first. cron does the same. A schedule that fires in every hour follows the real hours
    instead: it skips none and repeats none.
    """
    hourly = len(cron.hours) == 24
    for hour, minute in product(sorted(cron.hours), sorted(cron.minutes)):
        local = datetime.combine(day, time(hour, minute), zone)
        moment = local.astimezone(UTC)
        if moment.astimezone(zone).replace(fold=0) != local:
            if not hourly:
                yield _end_of_gap(local)
            continue
        yield moment
        if hourly:
            yield local.replace(fold=1).astimezone(UTC)


def _end_of_gap(local: datetime) -> datetime:
    """Returns the moment, in UTC, when clocks jump past the time `local`.

    Clocks are put forward when daylight saving begins. On that day, they never show `local`.
    """
    before, after = local.replace(fold=1).astimezone(UTC), local.astimezone(UTC)
    offset = after.astimezone(local.tzinfo).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) / 2
        if middle.astimezone(local.tzinfo).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)


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
