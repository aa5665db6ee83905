from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.batches.model import (
    FINISHED,
    Batch,
    BatchProgress,
    Share,
    Verdict,
    WindowState,
    choose_channel,
    combined,
)

COUNTS = st.integers(0, 300)


@given(runners=st.integers(1, 8), block=st.integers(1, 40), total=COUNTS, start=COUNTS)
def test_every_item_belongs_to_exactly_one_runner(runners: int, block: int, total: int, start: int) -> None:
    shares = [Share(runner, runners, block) for runner in range(runners)]
    start = min(start, total)
    own = [[share.index(at) for at in range(share.below(start), share.below(total))] for share in shares]
    assert sorted(index for indexes in own for index in indexes) == list(range(start, total))
    for share, indexes in zip(shares, own, strict=True):
        assert all(share.owns(index) for index in indexes)
        assert [share.index(share.below(index)) for index in indexes] == indexes


def test_single_runner_has_positions_equal_to_indexes() -> None:
    alone = Share()
    assert [(alone.index(at), alone.below(at)) for at in (0, 999, 1000, 12345)] == [
        (at, at) for at in (0, 999, 1000, 12345)
    ]


LOADS = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1)


@given(loads=LOADS)
@example(loads={"a": (1, 1), "b": (4, 5)})
def test_batch_gets_no_full_channel_while_another_has_room(loads: dict[str, tuple[int, int]]) -> None:
    """Channels may have different capacities: a small one that is full has a lower load than a large one with room."""
    chosen = choose_channel(loads)
    with_room = {name for name, (load, capacity) in loads.items() if load < capacity}
    assert chosen in (with_room or loads)
    # Of the same load, the first by its name: two processes choose the same one.
    assert all((loads[chosen][0], chosen) <= (loads[name][0], name) for name in with_room or loads)


@pytest.mark.parametrize(
    ("etas", "expected"),
    [((100.0, 300.0), 300.0), ((100.0, None), None), ((100.0, FINISHED), 100.0), ((FINISHED, FINISHED), None)],
    ids=["the last one", "one is unknown", "one has ended", "all have ended"],
)
def test_end_of_a_batch_is_known_if_that_of_each_runner_is(
    etas: tuple[float | str | None, ...], expected: float | None
) -> None:
    """A runner has no end in sight while its business is down, or before it begins."""
    known: dict[str, Any] = {
        "batch_id": "b",
        "project_id": "p",
        "status": "running",
        "created_at": "2026-11-18T00:00:00.000Z",
    }
    batch = Batch(**known, biz_id="z", name="points", rate=1, total=10, runners=2)
    runners = [
        BatchProgress(WindowState(0), verdict=Verdict(FINISHED) if eta == FINISHED else None)
        if not isinstance(eta, float)
        else BatchProgress(WindowState(0), eta=eta)
        for eta in etas
    ]
    assert combined(batch, runners).eta == expected
