"""A file past the limit of one PUT: up in parts, verified by the queue, down again, deleted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.deployed import Deployed, DeployedProject
from tidegate_client import Client
from tidegate_client.download import download_to
from tidegate_client.errors import NotFound

# Sparse, so that it costs neither time nor disk to make.
SIZE = 70 * 1024 * 1024 + 5


def test_large_file_goes_up_in_parts_is_verified_and_comes_down(
    deployed: Deployed, project: DeployedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "large.bin"
    with source.open("wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE - 5)
        file.write(b"tide!")
    client = Client(deployed.api_url, project.key)

    record = client.files.put(source, biz_id=1, app_id=2, file_path="/large.bin")

    assert (record["state"], record["size"]) == ("ready", SIZE)
    with source.open("rb") as file:
        assert record["signature"] == hashlib.file_digest(file, "sha256").hexdigest()
    assert not list((tmp_path / "state").rglob("*.jsonl")), "the journal goes with the upload"
    url = client.files.url(record["file_id"])["url"]
    download_to(deployed.pool, lambda _: url, tmp_path / "back.bin", size=SIZE, signature=record["signature"])
    client.files.delete(record["file_id"])
    with pytest.raises(NotFound):
        client.files.get(record["file_id"])
