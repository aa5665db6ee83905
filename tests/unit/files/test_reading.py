"""Reading an object in turns."""

from __future__ import annotations

import hashlib
import random
from itertools import chain, count, repeat
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.aws.s3 import StoredObject
from tidegate.common import sha256
from tidegate.errors import Busy, Conflict
from tidegate.files import reading
from tidegate.files import reading as verify
from tidegate.files.model import MIB, seconds_to_read
from tidegate.files.reading import BLOCKS_A_PIECE, ReadingTurn, RunningDigests, TurnReader, piece_size

CONTENT = random.Random(1).randbytes(9 * MIB + 12345)
FOUND = StoredObject(len(CONTENT), '"1"')
OVER, RANGE = 0.0, 2 * MIB


class Memory:
    """A bucket in memory. `etag` is that of the uploaded bytes now."""

    def __init__(self, uploaded: bytes = CONTENT) -> None:
        self.uploaded, self.etag = uploaded, '"1"'
        self.objects: dict[str, bytes] = {}
        self.read_bytes = 0
        self.deleted: list[str] = []

    def read_range(self, key: str, first: int, last: int, etag: str) -> bytes:
        if etag != self.etag:
            raise Conflict("the uploaded object was replaced or deleted while it was read")
        self.read_bytes += last - first + 1
        return self.uploaded[first : last + 1]

    def content(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self.objects.pop(key, None)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One range is one turn. Few are read ahead, so that repeated reading shows."""
    monkeypatch.setattr(reading, "LARGEST_SINGLE_UPLOAD", MIB)
    monkeypatch.setattr(verify, "RANGE", RANGE)
    monkeypatch.setattr(verify, "AHEAD", 1)


def reader(bucket: Memory, **more: Any) -> TurnReader:
    return TurnReader(cast(Any, bucket), **more)


def one_pass(bucket: Memory) -> verify.Checked:
    return verify.check(cast(Any, bucket), "k", FOUND)


def test_turns_give_the_digests_of_one_pass() -> None:
    bucket, turns = Memory(), 1

    # Another process in every turn.
    while (read := reader(bucket).check("k", FOUND, ReadingTurn("s", OVER))) is None:
        turns += 1

    assert turns == -(-len(CONTENT) // RANGE)
    assert bucket.read_bytes == len(CONTENT), "nothing is read twice"
    assert read.signature == hashlib.sha256(CONTENT).hexdigest()
    assert read == one_pass(bucket)
    assert read.pieces


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9 * MIB), max_size=5), st.booleans())
def test_digests_that_are_continued_are_those_of_one_pass(cuts: list[int], pieces: bool) -> None:
    """With pieces they are saved after any of them, without pieces at any offset."""
    digests = RunningDigests(FOUND, pieces=pieces)
    for cut in sorted({-(-cut // MIB) * MIB if pieces else cut for cut in cuts}):
        digests.update(CONTENT[digests.offset : cut])
        saved = digests.save()
        assert saved
        digests = RunningDigests.restore(saved, pieces=pieces)
        assert (digests.found, digests.offset) == (FOUND, cut)
    digests.update(CONTENT[digests.offset :])

    expected = one_pass(Memory())
    assert digests.finish() == (expected if pieces else verify.Checked(len(CONTENT), '"1"', expected.signature, None))


def test_nothing_is_saved_within_a_piece() -> None:
    digests = RunningDigests(FOUND, pieces=True)
    digests.update(CONTENT[: MIB + 1])

    assert digests.save() is None
    digests.update(CONTENT[MIB + 1 : 2 * MIB])
    assert digests.save()


@pytest.mark.parametrize(("now", "over"), [(75.0, False), (77.0, True)])
def test_turn_ends_early_enough_for_another_piece(now: float, over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 s, and 64 s for a piece of 2 GiB, before the invocation ends after 200 s."""
    a_piece = seconds_to_read(2048 * MIB)
    monkeypatch.setattr(reading, "seconds_to_read", lambda size: a_piece)
    monkeypatch.setattr(reading, "SAVE_SECONDS", 1e18)
    clock = chain([0.0], repeat(now))

    read = reader(Memory(), monotonic=lambda: next(clock)).check("k", FOUND, ReadingTurn("s", 200.0))

    assert (read is None) == over


@pytest.mark.parametrize("size", [64 * MIB + 1, 10**11, 5 << 40])
def test_ranges_and_pieces_end_together(size: int) -> None:
    """Otherwise a turn would find no place to save."""
    piece, whole = piece_size(size), 8 * MIB
    assert max(whole, piece) % min(whole, piece) == 0


def test_saved_digests_of_the_largest_file_are_small() -> None:
    size = 5 << 40
    blocks = size // (piece_size(size) // BLOCKS_A_PIECE)
    assert blocks * 36 + size // piece_size(size) * 32 < 3_000_000


def test_ordinary_file_is_neither_saved_nor_deleted() -> None:
    bucket = Memory()
    made = reader(bucket)

    assert made.check("k", FOUND, ReadingTurn("s", 1e18))
    made.forget("s")

    assert (bucket.objects, bucket.deleted) == ({}, [])


def test_digests_are_saved_every_minute() -> None:
    bucket, clock = Memory(), count(0, 45)
    made = reader(bucket, monotonic=lambda: float(next(clock)))

    def stop(done: int) -> None:
        if done > 6 * MIB:
            raise Busy("killed")

    with pytest.raises(Busy) as raised:
        made.check("k", FOUND, ReadingTurn("s", 1e18, stop))

    assert raised.value.progressed, "an attempt that got further does not count as a retry"
    # The second range ends after 90 s.
    assert RunningDigests.restore(bucket.objects["s"], pieces=True).offset == 2 * RANGE


def test_attempt_that_saved_nothing_counts_as_a_retry() -> None:
    def stop(_: int) -> None:
        raise Busy("killed")

    with pytest.raises(Busy) as raised:
        reader(Memory()).check("k", FOUND, ReadingTurn("s", 1e18, stop))

    assert not raised.value.progressed


def test_object_replaced_between_turns_is_a_conflict_once() -> None:
    bucket = Memory()
    made = reader(bucket)
    assert made.check("k", FOUND, ReadingTurn("s", OVER)) is None
    bucket.uploaded, bucket.etag = CONTENT[::-1], '"2"'
    now = StoredObject(len(CONTENT), '"2"')

    with pytest.raises(Conflict, match='its ETag was "1", now it is "2"'):
        made.check("k", now, ReadingTurn("s", OVER))

    assert bucket.objects == {}
    read = made.check("k", now, ReadingTurn("s", 1e18))
    assert read
    assert read.signature == hashlib.sha256(CONTENT[::-1]).hexdigest()


def test_object_replaced_during_a_turn_is_a_conflict() -> None:
    bucket = Memory()
    made = reader(bucket)
    assert made.check("k", FOUND, ReadingTurn("s", OVER)) is None
    bucket.etag = '"2"'

    with pytest.raises(Conflict):
        made.check("k", FOUND, ReadingTurn("s", OVER))
    assert bucket.objects == {}


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"{}\n" + data])
def test_malformed_digests_are_not_continued(damage: Any) -> None:
    bucket = Memory()
    assert reader(bucket).check("k", FOUND, ReadingTurn("s", OVER)) is None
    bucket.objects["s"] = damage(bucket.objects["s"])

    read = reader(bucket).check("k", FOUND, ReadingTurn("s", 1e18))

    assert read == one_pass(bucket)


def test_without_libcrypto_the_object_is_read_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sha256, "AVAILABLE", False)
    bucket = Memory()

    assert reader(bucket).check("k", FOUND, ReadingTurn("s", OVER)) == one_pass(bucket)
    assert bucket.objects == {}
