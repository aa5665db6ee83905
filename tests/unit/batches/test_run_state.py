from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidegate.batches.run_state import FINISHED, STOPPED, Answer, Call, Course, Rules, Verdict
from tidegate.batches.sliding_window import Ledger

OK = Answer("ok")


def play(course: Course, answers: dict[int, Answer] | None = None, start: float = 0.0) -> list[tuple[float, Call]]:
    """Calls everything one after another; each answer comes at once."""
    now, made = start, []
    while (step := course.next(now)) is not None:
        if isinstance(step, Call):
            made.append((now, step))
            course.record(step, (answers or {}).get(step.index, OK), now)
        else:
            now += step
    return made


def indexes(made: list[tuple[float, Call]]) -> list[int]:
    return [call.index for _, call in made]


def test_all_items_are_called_once_and_in_order() -> None:
    course = Course(25, Rules(rate=10), Ledger(0), now=0.0)
    assert indexes(play(course)) == list(range(25))
    assert course.verdict == Verdict(FINISHED)


def test_an_item_that_always_fails_is_tried_five_times_three_seconds_apart_and_named() -> None:
    course = Course(1000, Rules(rate=10), Ledger(0), now=0.0)
    made = play(course, {7: Answer("error", "no stock")})
    times = [moment for moment, call in made if call.index == 7]
    assert [call.attempt for _, call in made if call.index == 7] == [1, 2, 3, 4, 5]
    assert all(3 <= later - earlier < 3.2 for earlier, later in pairwise(times))
    assert course.verdict == Verdict(STOPPED, "item 7 failed 5 times: no stock", failed=True)
    assert course.window.offset == 7


def test_what_was_acknowledged_beyond_a_failed_item_is_not_called_again_after_a_restart() -> None:
    course = Course(150, Rules(rate=10), Ledger(0), now=0.0)
    first = indexes(play(course, {7: Answer("error")}))
    second = indexes(play(Course(150, Rules(rate=10), course.window.ledger(), now=0.0)))
    assert 7 in second
    assert set(first) & set(second) == {7}
    assert set(first) | set(second) == set(range(150))


def test_an_abandoned_item_counts_as_an_error_and_the_batch_goes_on() -> None:
    course = Course(20, Rules(rate=10), Ledger(0), now=0.0)
    assert len(play(course, {7: Answer("abandon")})) == 20
    assert (course.verdict, course.errors) == (Verdict(FINISHED), 1)


def test_max_errors_reached_stops_it() -> None:
    course = Course(20, Rules(rate=10, max_errors=2), Ledger(0), now=0.0)
    play(course, {3: Answer("abandon"), 5: Answer("abandon"), 9: Answer("abandon")})
    assert course.verdict == Verdict(STOPPED, "max_errors reached: 2 items were abandoned", failed=True)
    assert course.window.offset == 6


def test_the_business_may_stop_or_finish() -> None:
    stopped = Course(20, Rules(rate=10), Ledger(0), now=0.0)
    play(stopped, {4: Answer("ok", stop="stop")})
    assert stopped.verdict == Verdict(STOPPED, "the business stopped the batch at item 4")
    finished = Course(20, Rules(rate=10), Ledger(0), now=0.0)
    play(finished, {4: Answer("ok", stop="finish")})
    assert (finished.verdict, finished.window.offset) == (Verdict(FINISHED), 5)


def test_finish_wins_over_a_stop_that_came_before() -> None:
    course = Course(20, Rules(rate=10), Ledger(0), now=0.0)
    call = course.next(0.0)
    assert isinstance(call, Call)
    course.halt("asked to stop")
    course.record(call, Answer("ok", stop="finish"), 0.1)
    assert course.verdict == Verdict(FINISHED)


def test_a_retry_after_is_honoured() -> None:
    course = Course(1, Rules(rate=10, retry_delay=1), Ledger(0), now=0.0)
    times = [moment for moment, _ in play(course, {0: Answer("error", retry_after=9.0)})]
    assert times[1] >= 9


def test_retries_count_against_the_rate() -> None:
    course = Course(100, Rules(rate=10, retry_delay=0.01), Ledger(0), now=0.0)
    made = play(course, {index: Answer("error") for index in (1, 2, 3)})
    assert all(sum(1 for other, _ in made if at <= other < at + 1) <= 12 for at, _ in made)


@given(st.integers(0, 60), st.integers(0, 60), st.randoms(use_true_random=False))
def test_in_any_order_with_any_crash_nothing_is_lost(total: int, start: int, chance: random.Random) -> None:
    """Answers come in any order; now and then the runner dies and another goes on from the ledger."""
    ledger, done, now = Ledger(min(start, total)), set(range(min(start, total))), 0.0
    course = Course(total, Rules(rate=3, retry_delay=0.1), ledger, now)
    flying: list[Call] = []
    while not course.over:
        if chance.random() < 0.05:
            course, flying = Course(total, Rules(rate=3, retry_delay=0.1), course.window.ledger(), now), []
        step = course.next(now)
        if isinstance(step, Call):
            assert step.index not in done
            flying.append(step)
        elif step is not None:
            now += step
        if flying and chance.random() < 0.5:
            call = flying.pop(chance.randrange(len(flying)))
            failed = call.attempt < 4 and chance.random() < 0.2
            course.record(call, Answer("error") if failed else OK, now)
            done |= set() if failed else {call.index}
    assert course.verdict == Verdict(FINISHED)
    assert done == set(range(total))
