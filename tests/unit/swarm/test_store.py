from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import examples
from tidegate_client.swarm.chooser import FellBack, Mode, Ranks, why_fell_back
from tidegate_client.swarm.store import PieceStore, Sink, StaleFile
from tidegate_client.swarm.wire import Layout, pieces_in

CONTENT = bytes(range(256)) * 40 + b"the end"
LAYOUT = Layout(len(CONTENT), 1024)
LISTED = b"".join(hashlib.sha256(CONTENT[at : at + 1024]).digest() for at in range(0, len(CONTENT), 1024))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PieceStore]:
    with (tmp_path / "part").open("w+b") as file:
        made = PieceStore(file.fileno(), LAYOUT, LISTED)
        yield made
        made.close()


def piece(number: int) -> bytes:
    return CONTENT[LAYOUT.start(number) : LAYOUT.start(number) + LAYOUT.length(number)]


def test_part_file_of_another_length_keeps_its_right_pieces(store: PieceStore, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT[:3000] + b"\0" * 20_000)
    assert list(pieces_in(store.load_existing())) == [0, 1]
    assert (tmp_path / "part").stat().st_size == len(CONTENT)


def test_closed_sink_writes_nothing(store: PieceStore, tmp_path: Path) -> None:
    store.load_existing()
    sink = Sink(store, 0)
    sink.write(piece(0)[:100])
    sink.close()
    sink.write(b"x" * 500)
    assert (tmp_path / "part").read_bytes()[100:600] == bytes(500)
    assert not sink.is_right()


def test_sink_takes_exactly_its_piece(store: PieceStore) -> None:
    store.load_existing()
    last = LAYOUT.count - 1
    sink = Sink(store, last)
    sink.write(memoryview(piece(last)))
    assert sink.is_right()
    with pytest.raises(ValueError, match="more bytes"):
        sink.write(b"x")


def test_whole_digest_is_right_whatever_the_order_of_pieces(store: PieceStore) -> None:
    store.load_existing()
    for number in reversed(range(LAYOUT.count)):
        store.write(LAYOUT.start(number), piece(number))
        store.have |= 1 << number
        store.hash_ahead()
    assert store.whole_digest() == hashlib.sha256(CONTENT).hexdigest()


def test_recheck_finds_changed_pieces_and_changed_file_is_stale(store: PieceStore, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    store.load_existing()
    store.write(LAYOUT.start(3), b"other")
    assert list(pieces_in(store.recheck())) == [3]
    store.seal()
    assert store.read(0, 0, 10) == CONTENT[:10]
    with (tmp_path / "part").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(StaleFile):
        store.read(0, 0, 10)


@given(st.integers(1, 400), st.integers(1, 300), st.integers(0, 1 << 48), st.data())
@examples(60)
def test_ranks_are_a_permutation_and_rank_zero_is_spread_evenly(
    members: int, pieces: int, seed: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, pieces - 1))
    ranks = sorted(Ranks(number, members, seed, pieces).rank(chosen) for number in range(members))
    assert ranks == list(range(members))
    first = [len(Ranks(number, members, seed, pieces).below(1)) for number in range(members)]
    assert sum(first) == pieces
    assert max(first) <= -(-pieces // members)


def test_sealed_file_may_be_changed_by_the_agent_only(store: PieceStore, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    store.seal()
    with store.changing():
        (tmp_path / "part").rename(tmp_path / "other")
        (tmp_path / "other").chmod(0o640)
    assert store.read(0, 0, 3) == CONTENT[:3]

    (tmp_path / "other").chmod(0o600)
    with pytest.raises(StaleFile):
        store.read(0, 0, 3)


def test_failed_change_leaves_the_file_stale(store: PieceStore, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    store.seal()
    with contextlib.suppress(ZeroDivisionError), store.changing():
        (tmp_path / "part").write_bytes(b"another content")
        raise ZeroDivisionError
    with pytest.raises(StaleFile):
        store.read(0, 0, 3)


@pytest.mark.parametrize(
    ("mode", "peers", "bad_pieces", "why"),
    [
        (Mode.NONE, 4, 0, FellBack.NONE),
        (Mode.NONE, 4, 1, FellBack.NONE),
        (Mode.LADDER, 4, 0, FellBack.LADDER),
        (Mode.LADDER, 4, 2, FellBack.BAD_PIECES),
        (Mode.ALONE, 4, 0, FellBack.ALONE),
        (Mode.ALONE, 0, 0, FellBack.NO_PEERS),
        (Mode.DEADLINE, 4, 1, FellBack.DEADLINE),
    ],
)
def test_fall_back_reason(mode: Mode, peers: int, bad_pieces: int, why: FellBack) -> None:
    assert why_fell_back(mode, peers=peers, bad_pieces=bad_pieces) is why
