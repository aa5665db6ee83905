"""Blocks of a new file are found in an older version, whatever was changed, inserted or removed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import examples
from tests.support.swarm.lab import random_content
from tidegate.files import reading as library
from tidegate.files.reading import PieceDigests
from tidegate_client.swarm import store as host
from tidegate_client.swarm.store import BlockFinder, BlockList, OldFile, PieceStore
from tidegate_client.swarm.wire import Layout

MIB = 1 << 20
LAYOUT_PIECE = 1024
BLOCK = LAYOUT_PIECE // host.BLOCKS_A_PIECE


def listed(content: bytes, piece_size: int = LAYOUT_PIECE) -> BlockList:
    digests = library.BlockDigests(piece_size)
    for at in range(0, len(content), 777):
        digests.update(content[at : at + 777])
    return BlockList(Layout(len(content), piece_size), digests.finish())


def found(old: bytes, new: bytes, tmp_path: Path, piece_size: int = LAYOUT_PIECE) -> dict[int, bytes]:
    (tmp_path / "old").write_bytes(old)
    with (tmp_path / "old").open("rb") as file:
        return dict(BlockFinder(listed(new, piece_size), OldFile(file.fileno())).find(lambda _: True))


def reused(old: bytes, new: bytes, tmp_path: Path, piece_size: int = LAYOUT_PIECE) -> float:
    """The share of the new file that was found in the old one. Checks that the found blocks are right."""
    blocks, total = listed(new, piece_size), 0
    for block, content in found(old, new, tmp_path, piece_size).items():
        assert content == new[blocks.start(block) : blocks.start(block) + blocks.length(block)]
        total += len(content)
    return total / len(new)


def test_library_and_host_agree_on_the_block_list() -> None:
    assert (library.BLOCKS_A_PIECE, library.ENTRY_BYTES) == (host.BLOCKS_A_PIECE, host.ENTRY_BYTES)
    content = random_content(9 * MIB + 5)
    digests = PieceDigests(len(content))
    digests.update(content)
    made = digests.finish()
    blocks = BlockList(Layout(len(content), made.piece_size), made.blocks)
    assert len(made.blocks) == blocks.count * host.ENTRY_BYTES
    assert all(
        blocks.is_right(n, content[blocks.start(n) : blocks.start(n) + blocks.length(n)]) for n in range(blocks.count)
    )
    assert hashlib.sha256(made.blocks).hexdigest() == made.blocks_sha256


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda old: old,
    "one byte": lambda old: old[:30_000] + b"!" + old[30_001:],
    "a byte inserted at the beginning": lambda old: b"!" + old,
    "a byte removed in the middle": lambda old: old[:40_000] + old[40_001:],
    "ten blocks inserted": lambda old: old[:20_000] + random.Random(5).randbytes(640) + old[20_000:],
    "ten blocks removed": lambda old: old[:20_000] + old[20_640:],
    "the end cut off": lambda old: old[:-20_000],
    "more at the end": lambda old: old + random.Random(6).randbytes(3000),
}


@pytest.mark.parametrize("change", CHANGES)
def test_blocks_away_from_a_change_are_found(tmp_path: Path, change: str) -> None:
    old = random_content(100_000)
    new = CHANGES[change](old)
    different = 3000 if change == "more at the end" else 640 if change == "ten blocks inserted" else 1
    assert (1 - reused(old, new, tmp_path)) * len(new) <= different + 3 * BLOCK


def test_blocks_behind_a_large_insertion_are_found(tmp_path: Path) -> None:
    old, more = random_content(200_000), random.Random(9).randbytes(150_000)
    new = old[:50_000] + more + old[50_000:]
    assert reused(old, new, tmp_path) >= (len(old) - 4 * BLOCK) / len(new)


def test_release_with_many_small_changes_is_nearly_all_found(tmp_path: Path) -> None:
    """Nine of 300 files in an archive are replaced by files of another length."""
    drawn = random.Random(3)
    files = [drawn.randbytes(drawn.randrange(2000, 20_000)) for _ in range(300)]
    newer = list(files)
    for number in drawn.sample(range(300), 9):
        newer[number] = drawn.randbytes(drawn.randrange(2000, 20_000))
    old, new = b"".join(files), b"".join(newer)
    changed = sum(len(newer[n]) for n in range(300) if newer[n] is not files[n])
    assert reused(old, new, tmp_path) >= 1 - (changed + 9 * 3 * BLOCK) / len(new)


def test_file_of_zeros_and_similar_lines_is_found(tmp_path: Path) -> None:
    text = b"".join(f"line {n} of a file with lines that look alike\n".encode() for n in range(5000))
    old = bytes(10_000) + text + bytes(10_000)
    new = bytes(10_000) + text[:50_000] + b"another line\n" + text[50_000:] + bytes(10_000)
    assert reused(old, new, tmp_path) > 0.97


def test_search_in_an_unrelated_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = random_content(300_000, seed=1), random_content(300_000, seed=2)
    read = 0
    honest = OldFile.read

    def counting(self: OldFile, offset: int, length: int) -> bytes:
        nonlocal read
        got = honest(self, offset, length)
        read += len(got)
        return got

    monkeypatch.setattr(OldFile, "read", counting)
    assert found(old, new, tmp_path) == {}
    assert read <= (host._SEARCHED_AT_MOST + 2) * len(new)


def test_search_in_a_file_full_of_probes_is_bounded(tmp_path: Path) -> None:
    """All blocks of the new file begin with the same bytes, and the old file consists of them."""
    new = b"".join(b"0123456789abcdef" + n.to_bytes(4) + bytes(44) for n in range(2000))
    old = b"0123456789abcdef" * 20_000
    assert found(old, new, tmp_path) == {}


def test_file_truncated_during_the_search_yields_the_blocks_read_before(tmp_path: Path) -> None:
    new = random_content(100_000)
    path = tmp_path / "old"
    path.write_bytes(new)
    blocks = listed(new)
    with path.open("r+b") as file:
        finder = BlockFinder(blocks, OldFile(file.fileno())).find(lambda _: True)
        next(finder)
        file.truncate(10_000)
        rest = list(finder)
    assert 0 < len(rest) < 10_000 / BLOCK


@examples(60)
@given(st.data())
def test_only_right_blocks_are_found_in_any_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    parts = data.draw(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6))
    order = st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=20)
    old = b"".join(parts[n] for n in data.draw(order))
    new = b"".join(parts[n] for n in data.draw(order))
    reused(old, new, tmp_path_factory.mktemp("any"), piece_size=256)


def new_store(path: Path, content: bytes) -> PieceStore:
    pieces = [hashlib.sha256(content[at : at + LAYOUT_PIECE]).digest() for at in range(0, len(content), LAYOUT_PIECE)]
    with path.open("w+b") as file:
        store = PieceStore(file.fileno(), Layout(len(content), LAYOUT_PIECE), b"".join(pieces))
    store.load_existing()
    return store


def test_store_completes_pieces_and_requests_missing_blocks_of_others(tmp_path: Path) -> None:
    old = random_content(10 * LAYOUT_PIECE)
    new = old[:2100] + b"?" * 40 + old[2140:]
    (tmp_path / "old").write_bytes(old)
    store = new_store(tmp_path / "part", new)
    with (tmp_path / "old").open("rb") as file:
        copied = store.reuse(OldFile(file.fileno()), listed(new), lambda: None)
    assert store.have == 0b1111111011
    spans = [(span.offset, span.length) for span in store.spans(2)]
    # Bytes 2100 to 2139 of the file are in the first and the second block of piece 2.
    assert spans == [(0, BLOCK), (BLOCK, BLOCK)]
    assert copied == len(new) - 2 * BLOCK
    store.forget_blocks(2)
    assert [(span.offset, span.length) for span in store.spans(2)] == [(0, LAYOUT_PIECE)]
    store.close()
