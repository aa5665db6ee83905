"""Which archives are read, and which are refused."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadArchive, ConnectionFailed
from tidegate.ingest import archives
from tidegate.ingest import archives as unpacking
from tidegate.ingest.archives import RangeReader, entries_of

FILES = {"a.txt": b"tide" * 1000, "deep/er/b.bin": bytes(range(256)) * 9000, "empty": b""}


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for name, body in files.items():
            archive.writestr(name, body)
    return made.getvalue()


def tarred(
    files: dict[str, bytes], mode: str = "w:gz", change: Callable[[tarfile.TarInfo], None] | None = None
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            if change:
                change(info)
            archive.addfile(info, io.BytesIO(body))
    return made.getvalue()


def folders(count: int) -> list[tarfile.TarInfo]:
    made = [tarfile.TarInfo(f"folder{number}") for number in range(count)]
    for info in made:
        info.type = tarfile.DIRTYPE
    return made


def tar_header(kind: bytes, size: int = 0, sparse: bytes = b"") -> bytes:
    """One header block. `sparse`: whether more blocks follow, and the real size, of the kind GNUTYPE_SPARSE."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[482 : 482 + len(sparse)] = sparse
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(kind: bytes, body: bytes) -> bytes:
    return tar_header(kind, len(body)) + body + bytes(-len(body) % 512)


def read(archive: bytes) -> dict[str, bytes]:
    raw = RangeReader(lambda start, last: archive[start : last + 1], len(archive))
    reader = io.BufferedReader(raw, 4096)  # type: ignore[type-var]
    return {entry.path: b"".join(entry.chunks()) for entry in entries_of(reader, len(archive))}


@pytest.mark.parametrize(
    "archive", [zipped(FILES), *(tarred(FILES, f"w:{packing}") for packing in ("", "gz", "bz2", "xz"))]
)
def test_files_of_zip_and_tar_are_read_whole_through_ranges(archive: bytes) -> None:
    assert read(archive) == FILES


def test_dot_slash_and_backslashes_become_plain_paths() -> None:
    assert read(tarred({"./x/y": b"1"})) == {"x/y": b"1"}
    assert read(zipped({"x\\z": b"2"})) == {"x/z": b"2"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "C:/windows", "line\nfeed", ""])
def test_path_that_leaves_the_archive_is_refused(path: str) -> None:
    with pytest.raises(BadArchive):
        read(tarred({path: b"x"}))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind: bytes) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, "/etc/shadow", 0

    with pytest.raises(BadArchive, match="link or a device"):
        read(tarred({"x": b""}, change=change))


def test_symbolic_link_in_a_zip_is_refused() -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/shadow")
    with pytest.raises(BadArchive, match="link or a device"):
        read(made.getvalue())


def test_encrypted_entry_is_refused() -> None:
    archive = bytearray(zipped({"x": b"secret"}))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        archive[archive.rindex(magic) + offset] |= 1
    with pytest.raises(BadArchive, match="encrypted"):
        read(bytes(archive))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_bomb_is_refused_while_it_unpacks(pack: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 1024)
    with pytest.raises(BadArchive, match="bomb"):
        read(pack({"zeros": bytes(8_000_000)}))


def test_entries_that_are_skipped_count_toward_a_tar_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 1024)
    archive = tarred({"zeros": bytes(8_000_000), "wanted": b"x"})
    with pytest.raises(BadArchive, match="bomb"):
        list(entries_of(io.BytesIO(archive), len(archive)))


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_bomb_is_refused_before_it_fills_the_memory(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarred({"first": bytes(8_000_000), "zeros": bytes(64_000_000)}, f"w:{packing}")
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 16_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(BadArchive, match="bomb"):
            read(archive)
        # xz has a dictionary of 8 MiB.
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_packed_with_another_method_than_deflate_is_refused(method: int) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("zeros", bytes(100_000))
    with pytest.raises(BadArchive, match=r"'zeros' is neither stored nor deflated"):
        read(made.getvalue())


def test_xz_that_asks_for_a_huge_dictionary_is_refused() -> None:
    packed = bytearray(lzma.compress(tarred(FILES, "w:")))
    # The header of the first block follows the 12 bytes of the stream's.
    end = 12 + (packed[12] + 1) * 4
    packed[16] = 38
    packed[end - 4 : end] = zlib.crc32(packed[12 : end - 4]).to_bytes(4, "little")
    with pytest.raises(BadArchive, match=r"[Mm]emory"):
        read(bytes(packed))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("between", [b"", bytes(8)], ids=["joined", "padded"])
def test_packed_streams_one_after_the_other_are_one_archive(pack: Callable[[bytes], bytes], between: bytes) -> None:
    plain = tarred(FILES, "w:")
    streams = [pack(plain[at : at + 70_000]) for at in range(0, len(plain), 70_000)]
    assert read(between.join([*streams, pack(b""), b"trailing bytes"])) == FILES


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("read_at_once", range(1, 40, 3))
def test_short_streams_are_read_whole(
    pack: Callable[[bytes], bytes], read_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_PACKED_READ", read_at_once)
    streams = [pack(f"part {number} ".encode()) for number in range(12)]
    unpacked = unpacking.Unpacked(io.BytesIO(b"".join(streams)), unpacking.Budget(1000))
    assert unpacked.read(0) == b""
    assert unpacked.readall() == b"".join(f"part {number} ".encode() for number in range(12))


def test_folders_of_a_tar_count_toward_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 1024)
    archive = lzma.compress(b"".join(info.tobuf() for info in folders(5000)))
    with pytest.raises(BadArchive, match="bomb"):
        read(archive)


def test_too_many_folders_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_ENTRIES", 3)
    with pytest.raises(BadArchive, match="more than 3 files and folders"):
        read(b"".join(info.tobuf() for info in folders(4)))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(4):
            archive.mkdir(f"folder{number}")
    with pytest.raises(BadArchive, match="more than 3 files and folders"):
        read(made.getvalue())


def test_holes_of_a_sparse_file_count_toward_a_bomb() -> None:
    with pytest.raises(BadArchive, match="bomb"):
        read(tar_header(tarfile.GNUTYPE_SPARSE, sparse=b"\0%011o\0" % (1 << 30)))


def test_negative_size_of_a_sparse_file_is_refused() -> None:
    negative = b"\0\xff" + (256**11 - 10**12).to_bytes(11, "big")
    with pytest.raises(BadArchive, match="negative"):
        read(tar_header(tarfile.GNUTYPE_SPARSE, sparse=negative))


def test_large_extended_headers_in_a_row_are_refused() -> None:
    header = extended(tarfile.XHDTYPE, b"6 ab=\n" * 100_000)
    assert read(header + tar_header(tarfile.REGTYPE)) == {"x": b""}
    with pytest.raises(BadArchive, match="headers"):
        read(header * 2 + tar_header(tarfile.REGTYPE))


def test_long_list_of_sparse_blocks_is_refused() -> None:
    blocks = (bytes(504) + b"\1" + bytes(7)) * 3000
    with pytest.raises(BadArchive, match="headers"):
        read(tar_header(tarfile.GNUTYPE_SPARSE, sparse=b"\1%011o\0" % 0) + blocks)


def test_many_large_extended_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_HEADERS", 4096)
    with pytest.raises(BadArchive, match="headers"):
        read(tarred({str(number): b"" for number in range(10)}))


def test_large_header_for_all_entries_is_refused() -> None:
    small = extended(tarfile.XGLTYPE, b"52 comment=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b\n")
    assert read(small + tar_header(tarfile.REGTYPE)) == {"x": b""}
    large = extended(tarfile.XGLTYPE, b"".join(b"10 %05x=\n" % number for number in range(1000)))
    with pytest.raises(BadArchive, match="headers for all entries"):
        read(large + tar_header(tarfile.REGTYPE))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE], ids=["file", "link"])
def test_very_long_name_is_cut_in_the_error(kind: bytes) -> None:
    with pytest.raises(BadArchive) as refused:
        read(extended(tarfile.GNUTYPE_LONGNAME, b"./" * 250_000 + b"n" * 5000) + tar_header(kind))
    assert len(refused.value.detail) < 500


def test_huge_extended_header_of_a_tar_is_refused_before_it_is_read() -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 3 << 30
    with pytest.raises(BadArchive, match="header"):
        read(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))


def test_huge_directory_of_a_zip_is_refused_before_it_is_read() -> None:
    claimed = RangeReader(lambda _start, _last: b"", 1 << 40)
    with pytest.raises(BadArchive, match="directory"):
        claimed.readinto(bytearray(archives._LARGEST_READ + 1))


def test_lost_connection_is_not_reported_as_a_bad_archive() -> None:
    def cut(_start: int, _last: int) -> bytes:
        raise ConnectionResetError

    reader = io.BufferedReader(RangeReader(cut, 1000))  # type: ignore[type-var]
    with pytest.raises(ConnectionFailed):
        list(entries_of(reader, 1000))


def test_too_many_entries_and_a_path_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_ENTRIES", 3)
    with pytest.raises(BadArchive, match="more than 3"):
        read(tarred({str(number): b"" for number in range(4)}))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a", "2")
    with pytest.raises(BadArchive, match="twice"):
        read(made.getvalue())


@pytest.mark.parametrize("body", [b"", b"no archive at all" * 100, zipped(FILES)[:-30], tarred(FILES)[:200]])
def test_incomplete_archive_is_refused(body: bytes) -> None:
    with pytest.raises(BadArchive):
        read(body)


def test_zip_with_a_name_that_is_not_utf8_is_refused() -> None:
    archive = zipped({"ä.txt": b"x"})
    with pytest.raises(BadArchive, match="cannot be read"):
        read(archive.replace("ä".encode(), b"\xa4\xa4"))


@given(st.binary(max_size=2000), st.integers(0, 2000), st.booleans())
def test_damaged_archive_is_read_or_refused(noise: bytes, at: int, as_zip: bool) -> None:
    whole = zipped(FILES) if as_zip else tarred(FILES)
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    with contextlib.suppress(BadArchive):
        read(damaged)
