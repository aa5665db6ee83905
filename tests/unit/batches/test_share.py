from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.batches.model import Share

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
