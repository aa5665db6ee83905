"""A file too large for one PUT is uploaded in parts, verified by the queue, downloaded and deleted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployed import Deployed, DeployedProject, until
from tidegate_client.client import Client
from tidegate_client.download import download_to
from tidegate_client.errors import NotFound

# The file is sparse, so that it takes neither time nor disk space.
SIZE = 70 * 1024 * 1024 + 5


def test_large_file_is_uploaded_in_parts_verified_and_downloaded(
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
    assert not list((tmp_path / "state").rglob("*.jsonl")), "the journal is deleted after the upload"
    url = client.files.url(record["file_id"])["url"]
    download_to(deployed.pool, lambda _: url, tmp_path / "back.bin", size=SIZE, signature=record["signature"])
    client.files.delete(record["file_id"])
    with pytest.raises(NotFound):
        client.files.get(record["file_id"])


def test_upload_killed_midway_sends_only_what_is_missing(
    deployed: Deployed, project: DeployedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "killed.bin"
    with source.open("wb") as file:
        file.truncate(2 * SIZE)
    command = [sys.executable, "-m", "tidegate_client", "file", "put", str(source)]
    command += ["--biz-id", "1", "--app-id", "2", "--file-path", "/killed.bin"]
    credentials = {"TIDEGATE_API_URL": deployed.api_url, "TIDEGATE_KEY": project.key}
    upload = subprocess.Popen(command, env={**os.environ, **credentials}, stdout=subprocess.DEVNULL)
    try:
        until(lambda: parts_in_journal(tmp_path), bool, every=0.01)
    finally:
        upload.kill()
        upload.wait()
    uploaded = parts_in_journal(tmp_path)
    progress: list[int] = []

    record = Client(deployed.api_url, project.key).files.put(
        source, biz_id=1, app_id=2, file_path="/killed.bin", on_progress=lambda done, _: progress.append(done)
    )

    assert 0 < uploaded < PARTS, "it was killed midway"
    assert record["state"] == "ready"
    assert progress[0] >= (uploaded - 1) * PART, "uploaded parts are not sent again"
    assert progress[-1] == 2 * SIZE


PART = 16 * 1024 * 1024
PARTS = -(-2 * SIZE // PART)


def parts_in_journal(state: Path) -> int:
    """Returns the number of lines of the upload's journal after the first, which names the file."""
    return sum(max(0, path.read_text().count("\n") - 1) for path in state.rglob("*.jsonl"))
