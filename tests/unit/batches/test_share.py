from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.batches.model import FINISHED, Batch, BatchProgress, Share, Verdict, WindowState, combined

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
