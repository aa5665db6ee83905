"""Large objects of the local cloud are on disk, but are sliced and sent like bytes in memory."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local import large_objects
from local.large_objects import LargeObjects, OnDisk, is_hole, join, spilled, streamed

TEXT = bytes(range(256)) * 4


@pytest.fixture
def span(tmp_path: Path) -> OnDisk:
    path = tmp_path / "body"
    path.write_bytes(TEXT)
    return OnDisk.span(path, 0, len(TEXT))


@pytest.mark.parametrize("cut", [slice(None), slice(3, 17), slice(1000, 5000), slice(0, 0), slice(2000, 3000)])
def test_slice_of_an_object_on_disk_equals_the_slice_of_its_bytes(span: OnDisk, cut: slice) -> None:
    assert b"".join(span[cut].chunks()) == TEXT[cut]
    assert len(span[cut]) == len(TEXT[cut])
    assert b"".join(span[5:900][cut].chunks()) == TEXT[5:900][cut]


def test_zeros_take_no_room_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    zeros, text = spilled(bytes(1 << 20)), spilled(TEXT)
    assert is_hole(zeros.path)
    assert not is_hole(text.path)
    parts = [{"body": body, "size": len(body)} for body in (zeros, text, b"end")]

    join(parts, tmp_path / "whole")

    assert (tmp_path / "whole").read_bytes() == bytes(1 << 20) + TEXT + b"end"
    assert (tmp_path / "whole").stat().st_blocks * 512 < 1 << 20
    assert not zeros.path.exists()


def test_file_of_a_part_goes_with_its_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    upload = {"parts": {1: {"body": spilled(TEXT)}}}
    cut = upload["parts"][1]["body"][3:9]
    assert len(list(tmp_path.iterdir())) == 1
    del cut
    assert len(list(tmp_path.iterdir())) == 1, "a cut of it owns nothing"
    upload.clear()
    assert list(tmp_path.iterdir()) == []


def test_span_is_sent_in_chunks(span: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_objects, "_CHUNK", 300)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(streamed(unused)(send, 206, {"ETag": '"e"'}, span[10:]))

    assert sent[0]["status"] == 206
    assert (b"content-length", str(len(TEXT) - 10).encode()) in sent[0]["headers"]
    assert b"".join(message["body"] for message in sent[1:]) == TEXT[10:]
    assert [len(message["body"]) for message in sent[1:3]] == [300, 300]
    assert [message["more_body"] for message in sent[-2:]] == [True, False]


async def unused(*_: Any, **__: Any) -> None:
    raise AssertionError("what is on disk is not sent whole")


def test_etag_of_an_upload_is_that_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MiniStack hashes each part again when the upload is completed: by then it is on disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nothing = SimpleNamespace(**dict.fromkeys(NAMES))
    objects = LargeObjects(nothing)
    part = spilled(TEXT)
    assert objects.md5(part).digest() == hashlib.md5(TEXT, usedforsecurity=False).digest()
    part.known_md5 = b"k" * 16
    assert objects.md5(part).digest() == b"k" * 16
    assert objects.md5(TEXT, usedforsecurity=False).hexdigest() == hashlib.md5(TEXT, usedforsecurity=False).hexdigest()


NAMES = ("_upload_part", "_complete_multipart_upload", "_persist_object", "_read_body", "md5_hash")
