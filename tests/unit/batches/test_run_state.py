from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.batches import run_state
from tidegate.batches.model import (
    FINISHED,
    MOST_OPEN,
    STOPPED,
    Backoff,
    Carried,
    Counts,
    Decision,
    ItemCall,
    ItemResult,
    OpenItem,
    Rules,
    Verdict,
    WindowState,
)
from tidegate.batches.run_state import NO_RESULT, SKIP_ADVICE, RunState
from tidegate.batches.store import pack_open, unpack_open

OK = ItemResult("ok")


def play(
    state: RunState, answers: dict[int, ItemResult] | None = None, start: float = 0.0
) -> list[tuple[float, ItemCall]]:
    """Makes all calls one after another, each answered immediately. Returns (time, call) of each."""
    now, made = start, []
    while (step := state.next(now)) is not None:
        if isinstance(step, tuple):
            for call in step:
                made.append((now, call))
                state.record(call, (answers or {}).get(call.index, OK), now)
        else:
            now += step
    return made


def indexes(made: list[tuple[float, ItemCall]]) -> list[int]:
    return [call.index for _, call in made]


def test_all_items_are_called_once_and_in_order() -> None:
    state = RunState(25, Rules(rate=10), WindowState(0), now=0.0)
    assert indexes(play(state)) == list(range(25))
    assert state.verdict == Verdict(FINISHED)


def test_item_that_always_fails_stops_batch_after_five_attempts() -> None:
    state = RunState(1000, Rules(rate=10), WindowState(0), now=0.0)
    made = play(state, {7: ItemResult("error", "no stock")})
    times = [moment for moment, call in made if call.index == 7]
    assert [call.attempt for _, call in made if call.index == 7] == [1, 2, 3, 4, 5]
    assert all(3 <= later - earlier < 3.2 for earlier, later in pairwise(times))
    assert state.verdict == Verdict(STOPPED, f"item 7 failed 5 times: no stock; {SKIP_ADVICE}", failed=True)
    assert state.window.state().first_open == 7


def test_restart_repeats_only_the_failed_item() -> None:
    state = RunState(150, Rules(rate=10), WindowState(0), now=0.0)
    first = indexes(play(state, {7: ItemResult("error")}))
    restarted = RunState(150, Rules(rate=10), state.window.state(), now=0.0, carried=unpacked(state.carry()))
    second = indexes(play(restarted))
    assert 7 in second
    assert set(first) & set(second) == {7}
    assert set(first) | set(second) == set(range(150))


def test_abandoned_item_is_an_error_and_batch_continues() -> None:
    state = RunState(20, Rules(rate=10), WindowState(0), now=0.0)
    assert len(play(state, {7: ItemResult("abandon")})) == 20
    assert (state.verdict, state.current_counts) == (Verdict(FINISHED), Counts(abandoned=1))


def test_max_errors_stops_batch() -> None:
    state = RunState(20, Rules(rate=10, max_errors=2), WindowState(0), now=0.0)
    play(state, {3: ItemResult("abandon"), 5: ItemResult("abandon"), 9: ItemResult("abandon")})
    assert state.verdict == Verdict(STOPPED, "max_errors reached: 2 items did not succeed", failed=True)
    assert state.window.offset == 6


def test_business_may_stop_or_finish_batch() -> None:
    stopped = RunState(20, Rules(rate=10), WindowState(0), now=0.0)
    play(stopped, {4: ItemResult("ok", stop="stop")})
    assert stopped.verdict == Verdict(STOPPED, "the business stopped the batch at item 4")
    finished = RunState(20, Rules(rate=10), WindowState(0), now=0.0)
    play(finished, {4: ItemResult("ok", stop="finish")})
    assert (finished.verdict, finished.window.offset) == (Verdict(FINISHED), 5)


def test_finish_overrides_an_earlier_stop() -> None:
    state = RunState(20, Rules(rate=10), WindowState(0), now=0.0)
    calls = state.next(0.0)
    assert isinstance(calls, tuple)
    (call,) = calls
    state.halt("asked to stop")
    state.record(call, ItemResult("ok", stop="finish"), 0.1)
    assert state.verdict == Verdict(FINISHED)


def test_retry_after_is_honoured() -> None:
    state = RunState(1, Rules(rate=10, retry_delay=1), WindowState(0), now=0.0)
    times = [moment for moment, _ in play(state, {0: ItemResult("error", retry_after=9.0)})]
    assert times[1] >= 9


def test_retries_count_against_the_rate() -> None:
    state = RunState(100, Rules(rate=10, retry_delay=0.01), WindowState(0), now=0.0)
    made = play(state, {index: ItemResult("error") for index in (1, 2, 3)})
    assert all(sum(1 for other, _ in made if at <= other < at + 1) <= 12 for at, _ in made)


def in_slices(rate: float, seconds: float, slice_seconds: float, gap: float, most_calls: int) -> list[float]:
    """Returns the times of the calls over many slices, each a new process with only the stored state of the last. `gap`
    seconds pass between two slices. If the next call is far away, the process ends early and sleeps."""
    window, carried, now = WindowState(0), Carried(), 0.0
    made: list[float] = []
    while now < seconds and len(made) < most_calls:
        state = RunState(10**9, Rules(rate=rate), window, now, carried=carried)
        end = now + slice_seconds
        while now < end and len(made) < most_calls:
            step = state.next(now)
            if isinstance(step, tuple):
                made.append(now)
                state.record(step[0], OK, now)
            elif state.next_at(now) > now + 10:
                now = state.next_at(now) - 1
                break
            else:
                now += max(step or 0.0, 0.0005)
        now += gap
        window, carried = state.window.state(), unpacked(state.carry())
    return made


def unpacked(carried: Carried) -> Carried:
    return replace(carried, open_items=unpack_open(pack_open(carried.open_items)))


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3, 1, 7, 50, 2000])
def test_rate_is_within_five_percent_across_slices(rate: float) -> None:
    most = max(400, int(rate * 22.5))
    made = in_slices(rate, 10**6, slice_seconds=11 if rate > 1 else 240, gap=0.2, most_calls=most)
    if rate * 10 < 20:
        # With fewer than twenty calls in ten seconds, check the distances between them instead.
        distances = [later - earlier for earlier, later in pairwise(made)]
        assert min(distances) >= 0.95 / rate
        assert (len(made) - 1) / (made[-1] - made[0]) >= 0.95 * rate
        return
    starts = [0.5 * step for step in range(int(2 * (made[-1] - 10)))]
    counts = [bisect_left(made, at + 10) - bisect_left(made, at) for at in starts]
    assert max(counts) <= 10 * rate * 1.05
    assert min(counts) >= 10 * rate * 0.95


def awaiting(**more: Any) -> RunState:
    state = RunState(3, Rules(rate=100, retries=2, retry_delay=1, **more), WindowState(0), now=0.0, asynchronous=True)
    calls = state.next(0.0)
    assert isinstance(calls, tuple)
    state.await_result(calls[0], 60.0)
    return state


def ok(index: int, number: int = 1) -> Decision:
    return Decision(index, number, number, OK)


def opened(state: RunState, now: float) -> list[int]:
    """Opens the retries that are due, as a tick does. Returns the attempts."""
    due = state.to_open(now)
    for one in due:
        assert not state.apply(one, now)
    return [one.attempt for one in due]


def test_repeated_asynchronous_result_changes_nothing() -> None:
    state = awaiting()
    assert state.apply(ok(0), 1.0)
    assert not state.apply(Decision(0, 1, 1, ItemResult("abandon")), 2.0)
    assert (state.window.position, state.current_counts) == (1, Counts())


def test_result_before_the_answer_is_applied_later() -> None:
    state = RunState(3, Rules(rate=100), WindowState(0), now=0.0, asynchronous=True)
    calls = state.next(0.0)
    assert isinstance(calls, tuple)
    assert state.apply(ok(0), 0.1)
    assert not state.apply(ok(0), 0.1)
    state.apply_early(0.1)
    assert state.window.position == 0
    state.await_result(calls[0], 60.0)
    state.apply_early(0.2)
    assert state.window.position == 1


@pytest.mark.parametrize("answer", [OK, ItemResult("error"), ItemResult("abandon")])
def test_stored_result_counts_before_an_answer_to_its_call(answer: ItemResult) -> None:
    state = RunState(1, Rules(rate=100), WindowState(0), now=0.0, asynchronous=True)
    calls = state.next(0.0)
    assert isinstance(calls, tuple)
    state.record(calls[0], answer, 0.1)
    assert (state.window.position, [one.answer for one in state.undecided(0.1)]) == (0, [answer])
    assert state.apply(ok(0), 0.2)
    assert (state.verdict, state.current_counts, state.undecided(0.3)) == (Verdict(FINISHED), Counts(), [])


def test_time_out_counts_only_when_it_was_stored() -> None:
    state = awaiting(most_open=1)
    assert state.undecided(59.0) == []
    (late,) = state.undecided(60.5)
    assert (late.index, late.answer, state.current_counts.failed_calls) == (0, NO_RESULT, 0)
    assert state.apply(late, 60.5)
    assert state.current_counts.failed_calls == 1
    # The call has been decided: its result would have been refused.
    assert not state.apply(ok(0), 60.6)
    assert state.window.position == 0


def test_item_without_result_is_called_again() -> None:
    state = awaiting(most_open=1)
    assert state.next(30.0) == 0.05
    (late,) = state.undecided(60.5)
    state.apply(late, 60.5)
    assert state.next(60.5) == (ItemCall(1, 1),)
    state.record(ItemCall(1, 1), OK, 60.6)
    state.apply(ok(1), 60.6)
    # Not before its record is open for the second result.
    assert state.to_open(61.0) == []
    assert opened(state, 61.6) == [2]
    assert state.next(61.6) == (ItemCall(0, 2),)


def test_item_awaiting_result_is_not_called_by_next_slice() -> None:
    state = awaiting()
    carried = unpacked(state.carry())
    after = RunState(3, state.rules, state.window.state(), 5.0, carried=carried, asynchronous=True)
    made: list[int] = []
    for at in range(500, 600):
        if isinstance(step := after.next(at / 100), tuple):
            made += [call.index for call in step]
            after.apply(ok(step[0].index), at / 100)
            after.record(step[0], OK, at / 100)
            after.apply_early(at / 100)
    assert (made, after.window.position, after.verdict) == ([1, 2], 2, None)
    assert after.apply(ok(0), 7.0)
    assert after.verdict == Verdict(FINISHED)


def test_result_for_call_of_dead_runner_counts_without_call() -> None:
    state = RunState(2, Rules(rate=100), WindowState(0), now=0.0, asynchronous=True)
    assert state.apply(ok(1), 0.0)
    assert state.next(0.1) == (ItemCall(0, 1),)
    assert isinstance(state.next(0.2), float)


def test_attempt_that_a_dead_runner_opened_is_called_again() -> None:
    state = awaiting()
    carried = unpacked(state.carry())
    after = RunState(3, state.rules, state.window.state(), 5.0, carried=carried, asynchronous=True)
    # The record of the item says more than the progress that was saved.
    after.apply(Decision(0, 2, 2), 5.0)
    assert after.next(5.0) == (ItemCall(0, 2),)
    after.await_result(ItemCall(0, 2), 65.0)
    assert not after.apply(ok(0), 6.0)
    assert after.apply(ok(0, 2), 6.0)
    assert [(one.state, one.attempts) for one in after.outcomes] == [("recovered", 2)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_retry_under_way_at_a_crash_keeps_its_attempt(*, asynchronous: bool) -> None:
    """A business that hangs at its last attempt would otherwise get all attempts again after each crash."""
    rules = Rules(rate=10, retries=3, retry_delay=1)
    started = RunState(
        50,
        rules,
        WindowState(0),
        now=0.0,
        carried=Carried(open_items=(OpenItem(0, 3, 0.0),)),
        asynchronous=asynchronous,
    )
    for decision in started.to_open(0.0):
        started.apply(decision, 0.0)
    assert started.next(0.0) == (ItemCall(0, 3),)
    crashed = RunState(
        50,
        rules,
        started.window.state(),
        now=5.0,
        carried=unpacked(started.carry()),
        asynchronous=asynchronous,
    )
    for decision in crashed.to_open(5.0):
        crashed.apply(decision, 5.0)
    assert crashed.next(5.0) == (ItemCall(0, 3),)


def test_item_that_stopped_the_batch_gets_new_attempts() -> None:
    state = RunState(1, Rules(rate=100, retries=1), WindowState(0), now=0.0, asynchronous=True)
    assert state.next(0.0) == (ItemCall(0, 1),)
    state.await_result(ItemCall(0, 1), 1.0)
    (late,) = state.undecided(2.0)
    state.apply(late, 2.0)
    assert state.verdict
    assert state.verdict.failed
    carried = unpacked(state.carry())
    again = RunState(1, state.rules, state.window.state(), 5.0, carried=carried, asynchronous=True)
    assert not again.apply(late, 5.0)
    assert isinstance(again.next(5.0), float)
    (call,) = again.to_open(5.0)
    assert (call.attempt, call.number) == (1, 2)
    again.apply(call, 5.0)
    assert again.next(5.1) == (ItemCall(0, 1),)
    again.await_result(ItemCall(0, 1), 9.0)
    assert again.apply(Decision(0, 2, 1, OK), 6.0)
    assert (again.verdict, [one.state for one in again.outcomes]) == (Verdict(FINISHED), ["recovered"])


def test_only_announced_items_are_called() -> None:
    state = RunState(9, Rules(rate=1000), WindowState(0), now=0.0, asynchronous=True)
    state.window.reach = 1
    assert state.next(1.0) == (ItemCall(0, 1),)
    assert isinstance(state.next(1.1), float)
    # There is something to do, so the runner does not sleep.
    assert state.next_at(1.1) <= 1.2
    state.window.reach = state.reach_within(0.001)
    assert state.next(1.2) == (ItemCall(1, 1),)


def test_finished_batch_closes_items_that_were_called() -> None:
    state = awaiting()
    state.window.reach = 3
    assert state.left_open() == []
    assert state.next(0.5) == (ItemCall(1, 1),)
    state.apply(Decision(1, 1, 1, ItemResult("ok", stop="finish")), 0.6)
    state.record(ItemCall(1, 1), OK, 0.7)
    state.apply_early(0.7)
    assert state.verdict == Verdict(FINISHED)
    assert [one.index for one in state.left_open()] == [0, 2]


@given(st.integers(0, 60), st.integers(0, 60), st.randoms(use_true_random=False))
def test_no_item_is_lost_in_any_order_with_any_crash(total: int, start: int, chance: random.Random) -> None:
    """Answers come in any order; sometimes the runner dies and another continues from its saved state."""
    begin, done, now = WindowState(min(start, total)), set(range(min(start, total))), 0.0
    state = RunState(total, Rules(rate=3, retry_delay=0.1), begin, now)
    in_flight: list[ItemCall] = []
    while not state.over:
        if chance.random() < 0.05:
            carried = unpacked(state.carry())
            state = RunState(total, Rules(rate=3, retry_delay=0.1), state.window.state(), now, carried=carried)
            in_flight = []
        step = state.next(now)
        if isinstance(step, tuple):
            assert step[0].index not in done
            in_flight += step
        elif step is not None:
            now += step
        if in_flight and chance.random() < 0.5:
            call = in_flight.pop(chance.randrange(len(in_flight)))
            failed = call.attempt < 4 and chance.random() < 0.2
            state.record(call, ItemResult("error") if failed else OK, now)
            done |= set() if failed else {call.index}
    assert state.verdict == Verdict(FINISHED)
    assert done == set(range(total))


def called_in(seconds: float, rules: Rules, answer: Callable[[ItemCall], tuple[float, ItemResult]]) -> RunState:
    """Plays `seconds` of a batch without an end, with as many workers as its rules allow calls. `answer` returns after
    how many seconds which answer comes."""
    state, now, calls = (
        RunState(10**9, rules, WindowState(0), 0.0),
        0.0,
        list[tuple[float, int, ItemCall, ItemResult]](),
    )
    number = 0
    while now < seconds:
        while calls and calls[0][0] <= now:
            _, _, call, said = heapq.heappop(calls)
            state.record(call, said, now)
        if len(calls) == rules.most_calls:
            now = calls[0][0]
            continue
        step = state.next(now)
        assert step is not None
        if isinstance(step, float):
            now += min(max(step, 0.001), max(calls[0][0] - now, 0.001)) if calls else max(step, 0.001)
            continue
        for call in step:
            number += 1
            later, said = answer(call)
            heapq.heappush(calls, (now + later, number, call, said))
    return state


@pytest.mark.parametrize("retry_delay", [3, 30, 3600])
def test_one_percent_failing_items_leave_nine_tenths_of_rate(retry_delay: float) -> None:
    rules = Rules(rate=50, retries=5, retry_delay=retry_delay, skip_failed=True)
    error = ItemResult("error")
    state = called_in(400, rules, lambda call: (0.05, error if call.index % 100 == 7 else OK))
    assert state.window.position >= 0.9 * 50 * 400


def test_one_percent_hanging_items_leave_nine_tenths_of_rate() -> None:
    rules = Rules(rate=50, retries=3, skip_failed=True)
    hangs = (300.0, ItemResult("error", "did not answer within 300 s", down=True))
    state = called_in(400, rules, lambda call: hangs if call.index % 100 == 7 else (0.05, OK))
    assert state.window.position >= 0.9 * 50 * 400


def test_retries_of_hanging_items_leave_new_items_half_of_the_calls() -> None:
    """An item in a hundred hangs for half a minute: with its four retries, more than the 128 workers of a runner."""
    rules = Rules(rate=150, retries=5, skip_failed=True, most_calls=128)
    hangs = (30.0, ItemResult("error", "did not answer within 30 s", down=True))
    state = called_in(200, rules, lambda call: hangs if call.index % 100 == 7 else (0.05, OK))
    assert state.window.position >= 0.9 * 150 * 200


def test_window_waits_when_as_many_items_are_open_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "MOST_OPEN", 40)
    rules = Rules(rate=10, retry_delay=1000)
    state = called_in(100, rules, lambda call: (0.05, ItemResult("error") if call.index % 2 else OK))
    assert len(state.carry().open_items) == 40
    assert state.window.position <= 2 * 40


def test_most_open_items_fit_into_one_record() -> None:
    chance = random.Random(1)
    aside = sorted(chance.sample(range(10**12), MOST_OPEN))
    at = 1.8e9
    items = [OpenItem(index, chance.randrange(1, 100), at + chance.random() * 3600) for index in aside]
    assert len(pack_open(items)) < 380_000


@given(st.integers(0, 60), st.integers(0, 2**32), st.sampled_from([None, 1, 2, 5]), st.integers(1, 3))
def test_items_aside_survive_any_crash_and_count_once(total: int, seed: int, most: int | None, together: int) -> None:
    """The window holds two or three items, so that most items that fail or take long stand aside. A crash falls back to
    the last save; what was counted since then is called again, and nothing else."""
    rules = Rules(rate=0.2, retries=9, retry_delay=60, most_calls=most, items_per_call=together)
    chance = random.Random(seed)
    state, now = RunState(total, rules, WindowState(0), 0.0), 0.0
    saved = (state.window.state(), state.current_counts, unpacked(state.carry()))
    in_flight: list[ItemCall] = []
    done: set[int] = set()
    done_at_save: set[int] = set()
    while not state.over:
        if chance.random() < 0.1:
            window = WindowState(saved[0].offset, saved[0].bitmap, aside_of(saved[2], saved[0].offset))
            assert window == saved[0]
            state = RunState(total, rules, window, now, saved[1], saved[2])
            in_flight, done = [], set(done_at_save)
        step = state.next(now)
        if isinstance(step, tuple):
            assert not {call.index for call in step} & (done | {call.index for call in in_flight})
            in_flight += step
        elif step is not None:
            now += max(step, 0.1)
        if in_flight and chance.random() < 0.4:
            call = in_flight.pop(chance.randrange(len(in_flight)))
            failed = call.attempt < 4 and chance.random() < 0.5
            state.record(call, ItemResult("error") if failed else OK, now)
            done |= set() if failed else {call.index}
        assert state.window.position == len(done)
        if chance.random() < 0.3:
            saved = (state.window.state(), state.current_counts, unpacked(state.carry()))
            done_at_save = set(done)
    assert state.verdict == Verdict(FINISHED)
    assert done == set(range(total))


def aside_of(carried: Carried, offset: int) -> tuple[int, ...]:
    return tuple(sorted(item.index for item in carried.open_items if item.index < offset))


DOWN = ItemResult("error", "connection refused", down=True)


def test_no_item_loses_an_attempt_while_business_is_down() -> None:
    """It is down from 10 s to 310 s; each item has one attempt. A new process continues each 20 s."""
    rules, now = Rules(rate=20, retries=1, skip_failed=True), 0.0
    state, saved_at, made = RunState(1000, rules, WindowState(0), now), 0.0, list[tuple[float, ItemCall]]()
    waited: set[bool] = set()
    while (step := state.next(now)) is not None:
        if isinstance(step, tuple):
            for call in step:
                made.append((now, call))
                state.record(call, DOWN if 10 <= now < 310 else OK, now)
            continue
        now += max(step, 0.01)
        if now > saved_at + 20:
            assert not (state.outage.since and state.next_at(now) > now + 61)
            waited.add(state.outage.since > 0)
            saved_at, carried = now, unpacked(state.carry())
            state = RunState(1000, rules, state.window.state(), now, state.current_counts, carried)
    assert (state.verdict, state.current_counts.failed) == (Verdict(FINISHED), 0)
    assert {call.attempt for _, call in made} == {1}
    during = [at for at, _ in made if 12 <= at < 310]
    assert 5 <= len(during) <= 15, "1, 2, 4 … 60 s apart"
    assert waited == {True, False}
    assert now < 310 + 60 + 1000 / 20


def test_call_without_answer_counts_once_another_is_answered() -> None:
    state = RunState(100, Rules(rate=10, retries=2, retry_delay=1, skip_failed=True), WindowState(0), 0.0)
    made = play(state, {7: DOWN, 8: DOWN})
    assert [call.attempt for _, call in made if call.index == 7] == [1, 2]
    assert (state.verdict, state.current_counts.failed) == (Verdict(FINISHED), 2)


def test_items_that_are_never_answered_end_the_batch() -> None:
    """The last items hang, whatever the business does: an outage is believed for half an hour."""
    rules = Rules(rate=10, retries=2, retry_delay=1, skip_failed=True)
    state = RunState(30, rules, WindowState(0), 0.0)
    made = play(state, dict.fromkeys(range(20, 30), DOWN))
    assert (state.verdict, state.current_counts.failed) == (Verdict(FINISHED), 10)
    assert 1800 < made[-1][0] < 2000
    few = RunState(30, rules, WindowState(0), 0.0)
    made = play(few, dict.fromkeys(range(27, 30), DOWN))
    assert (few.current_counts.failed, made[-1][0] < 10) == (3, True)


def test_probe_takes_a_new_item_and_not_a_failed_one() -> None:
    state = RunState(100, Rules(rate=1, retries=2, retry_delay=1, skip_failed=True), WindowState(0), 0.0)
    made = play(state, dict.fromkeys(range(10, 18), DOWN))
    assert (state.verdict, state.current_counts.failed) == (Verdict(FINISHED), 8)
    assert made[-1][0] < 150


def test_business_that_names_a_time_is_not_tested_before_it() -> None:
    busy = ItemResult("error", "503", retry_after=120.0, down=True)
    state, now, made = RunState(100, Rules(rate=10, retries=1), WindowState(0), 0.0), 0.0, list[float]()
    while (step := state.next(now)) is not None:
        if isinstance(step, tuple):
            made.append(now)
            for call in step:
                state.record(call, busy if now < 200 else OK, now)
        else:
            now += max(step, 0.01)
    first = made[4]
    assert [round(at - first) for at in made if first < at < 300][:2] == [120, 240], "120 s between two tests"
    assert (state.verdict, state.current_counts.failed) == (Verdict(FINISHED), 0)


def test_business_is_tested_at_least_every_hour() -> None:
    week = ItemResult("error", "503", retry_after=7 * 86400.0, down=True)
    state, now = RunState(100, Rules(rate=10), WindowState(0), 0.0), 0.0
    while not state.outage.since:
        step = state.next(now)
        if isinstance(step, tuple):
            for call in step:
                state.record(call, week, now)
        else:
            now += max(step or 0.01, 0.01)
    assert state.outage.probe_at == state.outage.since + 3600


def test_backoff_grows_to_its_limit_with_jitter() -> None:
    backoff = Backoff(base=2, factor=3, max=50, jitter=0)
    assert [backoff.delay(0, attempt) for attempt in range(1, 6)] == [2, 6, 18, 50, 50]
    shaken = [Backoff(base=10, jitter=0.5).delay(index, 1) for index in range(1000)]
    assert 5 <= min(shaken) < 5.5 < 9.5 < max(shaken) <= 10
    state = RunState(1, Rules(rate=100, retries=4, backoff=backoff), WindowState(0), 0.0)
    times = [at for at, _ in play(state, {0: ItemResult("error")})]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [2, 6, 18]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_shorter_delay_acts_on_items_that_wait_already(*, asynchronous: bool) -> None:
    """At once, or in the slice that begins after the change; a repeated slice does not shorten a Retry-After."""
    rules = Rules(rate=10, retry_delay=3600, skip_failed=True)
    waits = [OpenItem(1, 2, 3600.0), OpenItem(2, 3, 50.0)]
    carried = Carried(open_items=tuple(waits), delays=rules.delays)
    state = RunState(3, rules, WindowState(3, aside=(1, 2)), 0.0, carried=carried, asynchronous=asynchronous)
    assert {item.index: item.at for item in state.carry().open_items} == {1: 3600.0, 2: 50.0}
    state.change_rules(replace(rules, retry_delay=100), 0.0)
    assert {item.index: item.at for item in state.carry().open_items} == {1: 100.0, 2: 50.0}

    shorter = replace(rules, backoff=Backoff(base=5, factor=4))
    later = RunState(3, shorter, WindowState(3, aside=(1, 2)), 10.0, carried=carried, asynchronous=asynchronous)
    assert {item.index: item.at for item in later.carry().open_items} == {1: 15.0, 2: 30.0}
    assert later.carry().delays == shorter.delays
    old = RunState(3, shorter, WindowState(3, aside=(1, 2)), 10.0, carried=replace(carried, delays=None))
    assert {item.index: item.at for item in old.carry().open_items} == {1: 3600.0, 2: 50.0}


def test_batch_ends_only_when_all_rows_are_counted() -> None:
    state = RunState(2, Rules(rate=1000, max_failed_percent=10), WindowState(0), 0.0, complete=False)
    abandoned = ItemResult("abandon")
    for now in (0.0, 1.0):
        step = state.next(now)
        assert isinstance(step, tuple)
        state.record(step[0], abandoned if now == 0 else OK, now)
    # One of two items did not succeed, but the total is not known yet.
    assert (state.verdict, isinstance(state.next(2.0), float)) == (None, True)
    state.extend(30, complete=True, batch_total=30)
    assert len(play(state, start=3.0)) == 28
    assert state.verdict == Verdict(FINISHED)
    few = RunState(2, Rules(rate=1000, max_failed_percent=10), state.start, 0.0, Counts(abandoned=1), complete=False)
    few.extend(9, complete=True, batch_total=9)
    assert few.verdict
    assert "max_failed_percent" in (few.verdict.reason or "")


def test_runner_does_not_sleep_while_further_rows_are_being_indexed() -> None:
    state = RunState(2, Rules(rate=1000, retry_delay=60), WindowState(0), 0.0, complete=False)
    for now in (0.0, 0.1):
        step = state.next(now)
        assert isinstance(step, tuple)
        state.record(step[0], ItemResult("error"), now)
    assert state.next_at(1.0) == 1.0
    state.extend(2, complete=True, batch_total=2)
    assert state.next_at(1.0) == 60.0


def test_open_item_beyond_indexed_rows_is_kept() -> None:
    carried = Carried(open_items=(OpenItem(7, 3, 0.0),))
    state = RunState(5, Rules(rate=1000), WindowState(5), 0.0, carried=carried, complete=False)
    step = state.next(1.0)
    assert step == (ItemCall(7, 3),)
