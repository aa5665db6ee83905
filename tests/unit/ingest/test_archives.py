"""Which archives are read, and which are refused."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadArchive, ConnectionFailed
from tidegate.ingest import archives
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
