from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

import pytest

from tidegate.common.sequences import Later
from tidegate.sheets import zip as module
from tidegate.sheets.zip import zip_stream


def test_entries_are_streamed_and_read_back() -> None:
    pulled: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in range(50):
            pulled.append(number)
            yield bytes([number]) * 100_000

    stream = zip_stream([("文件.txt", chunks()), ("empty", [])])
    header = next(stream)
    assert isinstance(header, Later)
    assert (bytes(header), pulled) == (b"", [])

    data = b"".join([header, *stream])
    assert data.startswith(b"PK\x03\x04")
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    assert archive.namelist() == ["文件.txt", "empty"]
    assert len(archive.read("文件.txt")) == 5_000_000
    assert archive.read("empty") == b""


def test_nested_archives_are_stored_with_the_right_checksum() -> None:
    inner = [zip_stream([("a.txt", [b"a" * 1000, b"b"])]), zip_stream([("b.txt", [b"c"])])]
    data = b"".join(zip_stream([("1.zip", inner[0]), ("2.zip", inner[1])], stored=True))

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert zipfile.ZipFile(io.BytesIO(archive.read("1.zip"))).read("a.txt") == b"a" * 1000 + b"b"


@pytest.mark.parametrize("limit", [0xFFFFFFFF, 1000])
def test_local_headers_and_directory_agree(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Excel refuses a large sheet with version 20 in the local header and 45 in the directory."""
    monkeypatch.setattr(module, "_MAX32", limit)
    data = b"".join(zip_stream([("a", [b"x" * 5000]), ("b", [b"y"])]))
    data = data.replace(limit.to_bytes(4, "little"), b"\xff\xff\xff\xff")

    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        version, flags = struct.unpack_from("<2H", data, info.header_offset + 4)
        crc, packed, size = struct.unpack_from("<3I", data, info.header_offset + 14)
        assert (version, flags & 8, crc) == (info.extract_version, 0, info.CRC)
        if version == 45:
            at = info.header_offset + 30 + len(info.filename)
            assert (packed, size) == (0xFFFFFFFF, 0xFFFFFFFF)
            assert struct.unpack_from("<2H2Q", data, at) == (1, 16, info.file_size, info.compress_size)
        else:
            assert (packed, size) == (info.compress_size, info.file_size)


def test_empty_archive_is_valid() -> None:
    assert zipfile.ZipFile(io.BytesIO(b"".join(zip_stream([])))).namelist() == []


def test_archive_over_4_gib_is_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower limit, every record has its 64-bit form, and readers must accept it."""
    monkeypatch.setattr(module, "_MAX32", 1000)
    data = b"".join(zip_stream([("a", [b"x" * 5000]), ("b", [bytes(range(256)) * 40]), ("c", [b"z"])]))
    # The maximum in a short field refers to the 64-bit field.
    data = data.replace((1000).to_bytes(4, "little"), b"\xff\xff\xff\xff")

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    assert [info.file_size for info in archive.infolist()] == [5000, 10240, 1]
    assert archive.read("b") == bytes(range(256)) * 40
    assert archive.getinfo("a").extract_version == 45
