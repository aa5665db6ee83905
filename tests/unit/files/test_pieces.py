from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.files.model import MIB
from tidegate.files.reading import PIECE_DIGEST_BYTES, PieceDigests, piece_size


@pytest.mark.parametrize(
    ("size", "piece", "count"),
    [
        (1, MIB, 1),
        (100_000_000, MIB, 96),
        (512 * MIB, MIB, 512),
        (512 * MIB + 1, 2 * MIB, 257),
        (1_000_000_000, 2 * MIB, 477),
        (8_000_000_000, 16 * MIB, 477),
        (50_000_000_000, 16 * MIB, 2981),
        (64 << 30, 16 * MIB, 4096),
        (5 << 40, 2048 * MIB, 2560),
    ],
)
def test_piece_size_grows_with_the_file(size: int, piece: int, count: int) -> None:
    assert (piece_size(size), -(-size // piece_size(size))) == (piece, count)


@given(st.integers(1, 5 << 40))
def test_any_size_gives_a_power_of_two_and_at_most_4096_pieces(size: int) -> None:
    piece = piece_size(size)
    assert piece & (piece - 1) == 0
    assert piece >= MIB
    assert 1 <= -(-size // piece) <= 4096


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5 * MIB), st.lists(st.integers(1, 2 * MIB), max_size=8), st.binary(min_size=1, max_size=64))
def test_digests_do_not_depend_on_chunk_sizes(size: int, cuts: list[int], seed: bytes) -> None:
    content = (seed * (size // len(seed) + 1))[:size]
    digests, at = PieceDigests(size), 0
    for cut in [*cuts, size]:
        digests.update(content[at : at + cut])
        at += cut
    listed = digests.finish().digests
    expected = [hashlib.sha256(content[start : start + MIB]).digest() for start in range(0, size, MIB)]
    assert [listed[n : n + PIECE_DIGEST_BYTES] for n in range(0, len(listed), PIECE_DIGEST_BYTES)] == expected
