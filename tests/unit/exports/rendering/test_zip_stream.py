from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import pytest

from tidegate.exports.rendering import zip_stream as module
from tidegate.exports.rendering.zip_stream import zip_stream


def test_entries_read_back_and_stream() -> None:
    pulled: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in range(50):
            pulled.append(number)
            yield bytes([number]) * 100_000

    stream = zip_stream([("文件.txt", chunks()), ("empty", [])])
    first = next(stream)
    assert first.startswith(b"PK\x03\x04")
    assert pulled == []

    archive = zipfile.ZipFile(io.BytesIO(first + b"".join(stream)))
    assert archive.testzip() is None
    assert archive.namelist() == ["文件.txt", "empty"]
    assert len(archive.read("文件.txt")) == 5_000_000
    assert archive.read("empty") == b""


def test_an_archive_of_nothing_is_an_archive() -> None:
    assert zipfile.ZipFile(io.BytesIO(b"".join(zip_stream([])))).namelist() == []


def test_past_4_gib_the_records_are_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit lowered, every record takes its 64-bit form, and readers must agree."""
    monkeypatch.setattr(module, "_MAX32", 1000)
    data = b"".join(zip_stream([("a", [b"x" * 5000]), ("b", [bytes(range(256)) * 40]), ("c", [b"z"])]))
    # The short fields say "look in the 64-bit ones" by their own maximum.
    data = data.replace((1000).to_bytes(4, "little"), b"\xff\xff\xff\xff")

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    assert [info.file_size for info in archive.infolist()] == [5000, 10240, 1]
    assert archive.read("b") == bytes(range(256)) * 40
    assert archive.getinfo("a").extract_version == 45
