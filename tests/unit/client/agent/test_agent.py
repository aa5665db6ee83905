"""The agent over HTTP against a fake API and a fake store: deliveries, refusals and reports."""

from __future__ import annotations

import os
import pwd
import random
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.patience import idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, Store
from tidegate_client.agent import delivery
from tidegate_client.agent.codes import Code
from tidegate_client.agent.disk import Fence, Partials
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import AlreadyRunning, HiddenFile, Journal
from tidegate_client.download import Cancelled
from tidegate_client.errors import TidegateError

CONTENT = random.Random(3).randbytes(700_001)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_file_arrives_and_its_result_is_reported(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    transfer = api.add("app.bin", CONTENT, directory="/data/app")

    start_agent()

    result = api.wait_for(transfer)
    figures = {name: result.pop(name) for name in ("size", "speed", "start_time", "end_time")}
    assert result == {"transfer_id": transfer, "container_id": "", "error_code": 0, "progress": 100}
    assert figures["size"] == len(CONTENT)
    assert figures["speed"] > 0
    assert figures["start_time"] < figures["end_time"]
    assert (root / "data/app/app.bin").read_bytes() == CONTENT
    assert names_in(root / "data/app") == ["app.bin"]


def test_running_transfer_reports_progress(api: AgentApi, store: Store, start_agent: StartAgent) -> None:
    store.seconds_a_chunk = 0.05
    transfer = api.add("app.bin", CONTENT)

    start_agent()

    api.wait_for(transfer)
    progress = api.progress(transfer)
    assert progress == sorted(progress)
    assert any(0 < percent < 100 for percent in progress)


def test_cut_connection_is_resumed(api: AgentApi, store: Store, root: Path, start_agent: StartAgent) -> None:
    store.cuts = [100_000, 50_000]
    transfer = api.add("app.bin", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert [wanted for _, wanted in store.requests] == [None, "bytes=100000-", "bytes=150000-"]
    assert (root / "data/app.bin").read_bytes() == CONTENT


def test_wrong_checksum_fails_and_leaves_no_file(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    transfer = api.add("app.bin", CONTENT, signature="a" * 64)

    start_agent()

    result = api.wait_for(transfer)
    assert result["error_code"] == Code.WRONG_CONTENT
    assert "SHA-256" in result["error_msg"]
    assert names_in(root / "data") == []


def test_missing_object_fails_the_transfer(api: AgentApi, store: Store, start_agent: StartAgent) -> None:
    transfer = api.add("app.bin", CONTENT)
    del store.objects["app.bin"]

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.FETCH_FAILED


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/../outside", "f"),
        ("/data/../../outside", "f"),
        ("relative", "f"),
        ("/data", "../f"),
        ("/data", ".."),
        ("/data", ""),
        ("/link-out", "f"),
        ("/link-out/deeper", "f"),
        ("/loop/x", "f"),
        ("/a-file", "f"),
    ],
)
def test_path_outside_the_root_is_refused(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent, directory: str, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link-out").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "a-file").write_text("x")
    transfer = api.add("f", CONTENT, directory=directory, file_name=name)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == Code.PATH_REFUSED
    assert names_in(outside) == []
    assert names_in(tmp_path) == ["outside", "root", "state"]


def test_symlink_at_the_target_is_replaced_not_followed(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (root / "data").mkdir()
    (root / "data/f").symlink_to(precious)
    transfer = api.add("f", CONTENT)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert precious.read_text() == "keep me"
    assert not (root / "data/f").is_symlink()
    assert (root / "data/f").read_bytes() == CONTENT


def test_hard_link_at_the_target_is_neither_written_nor_chowned(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(CONTENT)
    before = (precious.stat().st_uid, precious.read_bytes())
    (root / "data").mkdir()
    os.link(precious, root / "data/f")
    transfer = api.add("f", CONTENT, target_user="nobody")

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (precious.stat().st_uid, precious.read_bytes()) == before
    assert (root / "data/f").read_bytes() == CONTENT
    assert not (root / "data/f").samefile(precious)


@pytest.mark.parametrize(
    ("link", "target", "directory"),
    [("data", "real", "/data"), ("a/data", "../real", "/a/data"), ("a/b/data", "../../real", "/a/b/data")],
)
def test_symlink_that_stays_inside_is_followed(
    api: AgentApi, root: Path, start_agent: StartAgent, link: str, target: str, directory: str
) -> None:
    (root / "real").mkdir()
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(target)
    transfer = api.add("f", CONTENT, target_file_dir=directory)

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "real/f").read_bytes() == CONTENT


def test_delivered_file_belongs_to_the_target_user(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    transfer = api.add("f", CONTENT, target_user="nobody")

    start_agent()

    api.wait_for(transfer)
    wanted = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert ((root / "data/f").stat().st_uid, (root / "data").stat().st_uid) == (wanted, wanted)
    assert (root / "data/f").stat().st_mode & 0o777 == 0o644


def test_expired_url_is_replaced_by_the_next_poll(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.cuts = [100_000]
    store.seconds_a_chunk = 0.1
    transfer = api.add("app.bin", CONTENT)
    start_agent(patience=5.0)
    while not store.requests:
        time.sleep(0.01)
    store.valid_token = "2"

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/app.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_transfer_that_polls_missed_is_asked_for_again(
    api: AgentApi, store: Store, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """Its index may lag behind. If the API said that it was cancelled, there is nothing to ask for."""
    agent = start_agent().agent
    asked: list[object] = []
    transfer: Any = {"transfer_id": "tr-1", "container_id": "", "file_name": "app.bin"}
    object.__setattr__(agent, "_delivery", Mock(run=Mock(side_effect=Cancelled)))
    monkeypatch.setattr(agent._poll_trigger, "trigger", lambda *given, **_: asked.append(given))
    monkeypatch.setattr(agent._inbox, "has_ended", lambda _: is_cancelled)

    agent._deliver(transfer)

    assert len(asked) == (0 if is_cancelled else 1)


def test_withdrawn_transfer_stops_and_keeps_its_part_file(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.seconds_a_chunk = 0.2
    transfer = api.add("app.bin", CONTENT)
    start_agent(wait=0)
    while not api.progress(transfer):
        time.sleep(0.01)

    del api.transfers[transfer]

    asked, deadline = 0, idle_clock() + 30
    while asked != len(store.requests) or store.running:
        assert idle_clock() < deadline
        asked = len(store.requests)
        time.sleep(0.5)
    assert api.finals(transfer) == []
    assert all(name.startswith(".tidegate-") for name in names_in(root / "data"))


@pytest.mark.parametrize("is_wanted", [True, False])
def test_polling_agent_asks_before_the_rename_of_a_long_download(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    """The Job is cancelled in the last moment: the polls have not noticed it yet."""
    monkeypatch.setattr(delivery, "ASK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(delivery, "ASK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Inbox, "is_cancelled", lambda *_: False)
    store.seconds_a_chunk = 0.1
    transfer = api.add("app.bin", CONTENT)
    running = start_agent()
    asked: list[object] = []
    listing = running.agent._delivery.list_wanted

    def ask() -> object:
        asked.append(1)
        return listing()

    object.__setattr__(running.agent._delivery, "list_wanted", ask)
    while not api.progress(transfer):
        time.sleep(0.01)
    if not is_wanted:
        del api.transfers[transfer]
    deadline = idle_clock() + 20
    while not asked or (is_wanted and not api.finals(transfer)):
        assert idle_clock() < deadline
        time.sleep(0.01)
    time.sleep(0.3)

    assert (root / "data/app.bin").exists() == is_wanted
    assert len(asked) == (1 if is_wanted else 2), "once more, because the list may lag behind"


def test_agent_that_polled_a_moment_ago_asks_nothing_more(
    api: AgentApi, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ASK_AFTER_SECONDS", 30.0)
    running = start_agent()
    object.__setattr__(running.agent._delivery, "list_wanted", lambda: pytest.fail("it asked"))

    assert api.wait_for(api.add("f", CONTENT))["error_code"] == 0


def test_api_that_does_not_answer_holds_up_no_delivery(
    api: AgentApi, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ASK_AFTER_SECONDS", 0.0)

    def unavailable() -> list[object]:
        raise TidegateError("no answer")

    running = start_agent()
    object.__setattr__(running.agent._delivery, "list_wanted", unavailable)

    assert api.wait_for(api.add("f", CONTENT))["error_code"] == 0


def test_transfer_that_the_api_ended_is_not_put_in_place(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    """Told over the WebSocket, while the inbox still lists it."""
    store.seconds_a_chunk = 0.1
    transfer = api.add("app.bin", CONTENT)
    running = start_agent()
    while not api.progress(transfer):
        time.sleep(0.01)

    running.agent._push._handle({"type": "transfers", "ended": transfer})

    deadline = idle_clock() + 20
    while store.running or running.agent._inbox.active():
        assert idle_clock() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    assert not (root / "data/app.bin").exists()
    assert api.finals(transfer) == []
    other = api.add("other", CONTENT)
    assert api.wait_for(other)["error_code"] == 0


def test_no_more_downloads_than_parallel_run_at_once(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.seconds_a_chunk = 0.02
    transfers = [api.add(f"f{number}", CONTENT[: 200_000 + number]) for number in range(8)]

    start_agent(parallel=3)

    assert [api.wait_for(transfer)["error_code"] for transfer in transfers] == [0] * 8
    assert store.most_at_once == 3
    assert names_in(root / "data") == [f"f{number}" for number in range(8)]


def test_several_transfers_to_one_path_download_once(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.seconds_a_chunk = 0.02
    transfers = [api.add("f", CONTENT) for _ in range(4)]

    start_agent(parallel=4)

    assert [api.wait_for(transfer)["error_code"] for transfer in transfers] == [0] * 4
    assert len(store.requests) == 1
    assert names_in(root / "data") == ["f"]


def test_container_files_go_below_the_root_of_their_container(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    (tmp_path / "containers/c1").mkdir(parents=True)
    inside = api.add("f", CONTENT, container_id="c1")
    outside = api.add("g", CONTENT, container_id="../root")

    start_agent(container_root=tmp_path / "containers")

    assert api.wait_for(inside)["error_code"] == 0
    assert api.wait_for(outside)["error_code"] == Code.PATH_REFUSED
    assert (tmp_path / "containers/c1/data/f").read_bytes() == CONTENT


def test_second_agent_cannot_open_the_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path)

    with pytest.raises(AlreadyRunning):
        Journal(tmp_path)
    assert first.lost_at == 0


def test_old_part_files_of_version_1_0_are_removed(tmp_path: Path) -> None:
    now = [1000.0]
    journal = Journal(tmp_path / "state", now=lambda: now[0])
    partials = Partials(journal, Fence(tmp_path), seconds=100, now=lambda: now[0])
    old, young = tmp_path / ".old.part", tmp_path / ".young.part"
    for part in (old, young):
        part.write_bytes(b"x")
        journal.part_opened(HiddenFile(part, ""), part)
        now[0] += 100

    now[0] = 1150
    assert partials.sweep() == 1
    assert (old.exists(), young.exists()) == (False, True)
