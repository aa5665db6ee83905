"""When a callback is tried again, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.notifications.deliveries import (
    DEAD,
    DELIVERED,
    GIVE_UP_SECONDS,
    JITTER,
    LONGEST_PAUSE_SECONDS,
    PENDING,
    Attempt,
    CallbackDelivery,
    after,
    back_off,
    new_delivery,
    pause_after,
    redelivered,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE = {
    "message_id": "msg_1",
    "project_id": "p",
    "record_id": "r",
    "type": "task.completed",
    "callback": "https://Host.example:8443/hook",
}


def fresh() -> CallbackDelivery:
    return new_delivery(MESSAGE, "{}", NOW)


def failed(status: int | None = 500) -> Attempt:
    return Attempt("2026-01-01T00:00:00.000Z", 1, status)


@pytest.mark.parametrize(
    ("tries", "seconds"), [(1, 5), (2, 30), (3, 120), (4, 600), (5, 1800), (6, 3600), (7, 3600), (30, 3600)]
)
def test_back_off_grows_from_5_s_to_hourly_with_jitter(tries: int, seconds: int) -> None:
    assert back_off(tries, 0) == seconds
    assert seconds < back_off(tries, 0.99) < seconds * (1 + JITTER)


STATUSES = st.sampled_from([None, 301, 400, 404, 429, 500, 503])


@given(st.lists(st.tuples(STATUSES, st.floats(0, 1e6) | st.none(), st.floats(0, 0.99))))
def test_callback_ends_within_a_day_whatever_is_answered(
    answers: list[tuple[int | None, float | None, float]],
) -> None:
    delivery, now = fresh(), NOW
    for status, retry_after, chance in answers + [(500, None, 0.0)] * 40:
        delivery = after(delivery, failed(status), now, retry_after=retry_after, chance=chance)
        if delivery.state != PENDING:
            break
        assert now.timestamp() < delivery.next_attempt_at <= delivery.gives_up_at
        now = datetime.fromtimestamp(delivery.next_attempt_at, UTC)
    assert delivery.state == DEAD
    assert now <= NOW + timedelta(seconds=GIVE_UP_SECONDS)


def test_2xx_delivers_and_410_ends_the_retries() -> None:
    assert after(fresh(), failed(204), NOW, retry_after=None, chance=0).state == DELIVERED
    assert after(fresh(), failed(410), NOW, retry_after=None, chance=0).state == DEAD
    assert after(fresh(), failed(302), NOW, retry_after=None, chance=0).state == PENDING


def test_retry_after_shorter_than_the_back_off_does_not_shorten_it() -> None:
    assert after(fresh(), failed(503), NOW, retry_after=1, chance=0).next_attempt_at == NOW.timestamp() + 5
    assert after(fresh(), failed(503), NOW, retry_after=90, chance=0).next_attempt_at == NOW.timestamp() + 90


def test_redelivery_gets_another_day_and_keeps_the_history() -> None:
    dead = replace(after(fresh(), failed(410), NOW, retry_after=None, chance=0), tries=9)
    later = NOW + timedelta(days=3)

    again = redelivered(dead, later)

    assert (again.state, again.tries, len(again.attempts)) == (PENDING, 0, 1)
    assert again.gives_up_at == later.timestamp() + GIVE_UP_SECONDS
    assert again.delivery_id == dead.delivery_id


def test_host_is_named_with_its_port_in_lower_case() -> None:
    assert fresh().host == "host.example:8443"


@given(st.integers(0, 1000))
def test_pauses_grow_and_are_bounded(failures: int) -> None:
    assert 0 <= pause_after(failures) <= pause_after(failures + 1) <= LONGEST_PAUSE_SECONDS
