from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.batches.model import WindowState
from tidegate.batches.run_state import SlidingWindow

TOTAL = 40


class AgainstNaiveModel(RuleBasedStateMachine):
    """Compares the window with a list of booleans, one for each item."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 7
        self.start = 5
        self.window = SlidingWindow(TOTAL, self.size, WindowState(self.start))
        self.acknowledged = [index < self.start for index in range(TOTAL)]
        self.taken: set[int] = set()
        self.aside: set[int] = set()

    @property
    def offset(self) -> int:
        passed = (index in self.aside or done for index, done in enumerate(self.acknowledged))
        return next((index for index, done in enumerate(passed) if not done), TOTAL)

    @rule()
    def take(self) -> None:
        free = [
            index
            for index in range(self.offset, min(self.offset + self.size, TOTAL))
            if not self.acknowledged[index] and index not in self.taken
        ]
        index = self.window.hand_out()
        assert index == (free[0] if free else None)
        if index is not None:
            self.taken.add(index)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.taken)))
        self.window.acknowledge(index)
        self.acknowledged[index] = True
        self.taken.discard(index)
        self.aside.discard(index)

    @precondition(lambda self: self.offset in self.taken)
    @rule()
    def set_first_aside(self) -> None:
        first = self.offset
        self.window.set_first_aside()
        self.aside.add(first)

    @rule(size=st.integers(1, 12))
    def resize(self, size: int) -> None:
        self.window.resize(size)
        self.size = size

    @rule(size=st.integers(1, 12))
    def crash_and_resume(self, size: int) -> None:
        """Indexes that were handed out and not acknowledged are handed out again; acknowledged ones are not."""
        self.window = SlidingWindow(TOTAL, size, self.window.state())
        self.size = size
        self.taken = set(self.aside)

    @invariant()
    def agrees(self) -> None:
        assert self.window.offset == self.offset
        assert self.window.position == sum(self.acknowledged)
        assert self.window.done == all(self.acknowledged)
        state = self.window.state()
        assert state.offset + state.acknowledged - len(state.aside) == sum(self.acknowledged)
        assert state.aside == tuple(sorted(self.aside))
        first_open = next((index for index, done in enumerate(self.acknowledged) if not done), TOTAL)
        assert state.first_open == first_open
        assert all(self.window.is_done(index) == done for index, done in enumerate(self.acknowledged))


TestAgainstNaiveModel = AgainstNaiveModel.TestCase


@given(st.integers(0, 10**10), st.sets(st.integers(1, 2000)))
def test_window_is_the_same_after_being_stored(offset: int, above: set[int]) -> None:
    window = SlidingWindow(offset + 2001, 2001, WindowState(offset))
    for _ in range(2001):
        window.hand_out()
    for place in above:
        window.acknowledge(offset + place)
    again = SlidingWindow(offset + 2001, 2001, window.state())
    handed = set()
    while (index := again.hand_out()) is not None:
        handed.add(index - offset)
    assert handed == set(range(2001)) - above


def test_acknowledging_an_index_never_handed_out_is_refused() -> None:
    window = SlidingWindow(10, 5, WindowState(0))
    window.hand_out()
    with pytest.raises(ValueError, match="never handed out"):
        window.acknowledge(1)


def test_acknowledging_twice_changes_nothing() -> None:
    window = SlidingWindow(10, 5, WindowState(0))
    for _ in range(3):
        window.hand_out()
    for index in (1, 1, 0, 0, 1):
        window.acknowledge(index)
    assert (window.offset, window.state()) == (2, WindowState(2))


def test_memory_for_ten_billion_items_depends_on_window_only() -> None:
    window = SlidingWindow(10**10, 20_000, WindowState(10**10 - 30_000))
    while (index := window.hand_out()) is not None:
        if index % 1000:
            window.acknowledge(index)
    assert len(window.state().bitmap) <= 20_000 // 8 + 1
    assert window.offset == 10**10 - 30_000
