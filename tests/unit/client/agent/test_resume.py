"""Downloads resume from part files: after a time-out, in the next Job, and after a stalled store."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.patience import idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, Store, sha256
from tidegate_client.agent import daemon
from tidegate_client.agent.disk import Fence, Partials, open_place
from tidegate_client.agent.journal import HiddenFile, Journal

CONTENT = random.Random(4).randbytes(700_000)


def parts(root: Path) -> list[Path]:
    return list(root.glob("data/.tidegate-*.part/*"))


def wait_for_part(root: Path, least: int) -> None:
    deadline = idle_clock() + 20
    while not any(part.stat().st_size >= least for part in parts(root)):
        assert idle_clock() < deadline
        time.sleep(0.01)


def test_resubmit_after_a_time_out_resumes_the_part_file(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    """A file that takes longer than the Job's time-out arrives over several Jobs."""
    store.seconds_a_chunk = 0.1
    start_agent(wait=0)
    for attempt in range(2):
        timed_out = api.add("f", CONTENT, sequence=attempt)
        wait_for_part(root, least=200_000 * (attempt + 1))
        del api.transfers[timed_out]
        while store.running:
            time.sleep(0.05)
    kept = parts(root)[0].stat().st_size
    store.seconds_a_chunk = 0
    begun = len(store.requests)

    again = api.add("f", CONTENT, sequence=9, transfer_id="tr-again")
    api.transfers["tr-again"] = api.transfers.pop(again)

    assert api.wait_for("tr-again")["error_code"] == 0
    assert store.requests[begun:] == [("f", f"bytes={kept}-")]
    assert kept >= 400_000
    assert (root / "data/f").read_bytes() == CONTENT
    assert parts(root) == []


def test_stalled_download_is_postponed_and_frees_its_worker(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "FIRST_STALL_PAUSE", 0.3)
    store.cuts, store.silent_after_cut = [300_000], True
    stalled = api.add("f", CONTENT, sequence=1)
    start_agent(parallel=1, patience=0.5)
    wait_for_part(root, least=100_000)

    other = api.add("g", CONTENT[:1000], sequence=2)
    assert api.wait_for(other)["error_code"] == 0
    time.sleep(2.0)
    assert api.finals(stalled) == []
    store.silent = set()

    assert api.wait_for(stalled)["error_code"] == 0
    assert store.requests[-1] == ("f", "bytes=300000-")
    assert (root / "data/f").read_bytes() == CONTENT


def partials_in(tmp_path: Path, sizes: list[int], **bounds: float) -> tuple[Partials, list[Path], list[float]]:
    now = [1000.0]
    journal = Journal(tmp_path / "state", now=lambda: now[0])
    made = []
    for number, size in enumerate(sizes):
        hidden = HiddenFile(tmp_path / f".{number}.part", "secret")
        hidden.path.mkdir(mode=0o700)
        (hidden.path / hidden.secret).write_bytes(b"x" * size)
        journal.part_opened(hidden, tmp_path / str(number))
        made.append(hidden.path)
        now[0] += 10
    return Partials(journal, Fence(tmp_path), now=lambda: now[0], **bounds), made, now  # type: ignore[arg-type]


def test_oldest_part_files_are_removed_above_the_size_limit(tmp_path: Path) -> None:
    partials, made, _ = partials_in(tmp_path, [100, 100, 100], most_bytes=250)

    assert partials.total_bytes() == 300
    assert partials.sweep() == 1
    assert [path.exists() for path in made] == [False, True, True]


def test_part_file_in_use_is_not_removed(tmp_path: Path) -> None:
    partials, (part,), now = partials_in(tmp_path, [100], seconds=5)
    now[0] += 100
    with open_place(Fence(tmp_path), "/", "f", (os.geteuid(), os.getegid())) as place:
        with partials.opened(place, ["content"]):
            now[0] += 100
            assert partials.sweep() == 1
            assert len(list(tmp_path.glob(".tidegate-*/*"))) == 1
        assert not part.exists()


def test_part_file_with_a_future_time_is_removed(tmp_path: Path) -> None:
    partials, (part,), now = partials_in(tmp_path, [100], seconds=1e6)
    now[0] -= 500
    assert partials.sweep() == 1
    assert not part.exists()


def test_part_file_behind_a_new_symlink_is_not_removed(tmp_path: Path) -> None:
    """The owner of the directory must not be able to make the agent delete files elsewhere."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    journal = Journal(tmp_path / "state", now=lambda: 0.0)
    journal.part_opened(HiddenFile(tmp_path / "theirs/.a.part", "secret"), tmp_path / "theirs/a")
    (tmp_path / "theirs").rmdir()
    (tmp_path / "theirs").symlink_to(tmp_path / "elsewhere")
    precious = tmp_path / "elsewhere/.a.part/secret"
    precious.parent.mkdir(mode=0o700)
    precious.write_text("keep")

    Partials(journal, Fence(tmp_path), seconds=5, now=lambda: 100.0).sweep()

    assert precious.read_text() == "keep"
    assert journal.parts() == []


def test_part_file_with_wrong_content_is_not_kept(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    transfer = api.add("f", CONTENT, signature=sha256(b"other"))
    start_agent()
    api.wait_for(transfer)
    assert parts(root) == []


def test_part_file_that_cannot_be_removed_does_not_stop_the_sweep(tmp_path: Path) -> None:
    partials, made, now = partials_in(tmp_path, [100, 100], seconds=5)
    (made[0] / "of somebody else").touch()
    now[0] += 100

    assert partials.sweep() == 1
    assert [path.exists() for path in made] == [True, False]
