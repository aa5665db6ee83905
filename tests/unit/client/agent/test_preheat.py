"""Preheat: files are downloaded before their `activate_at`, and put in place at that time."""

from __future__ import annotations

import json
import os
import random
import stat
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import until
from tests.unit.client.conftest import Running, StartAgent
from tests.unit.client.fakes import AgentApi, Store, sha256
from tidegate_client.agent.codes import Code
from tidegate_client.agent.inbox import LIST_LIMIT, STAGED_LIST_LIMIT, Inbox, is_truncated
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.preheat import (
    CONFIRM_SECONDS,
    Action,
    FileMetadata,
    Staged,
    StagedFile,
    Switcher,
    iso,
    next_action,
    staged_result,
)
from tidegate_client.inputs import Transfer

V1, V2, V3 = (random.Random(seed).randbytes(200_000) for seed in (1, 2, 3))
HOUR = 3600.0
AdvanceClock = Callable[[float], None]


@pytest.fixture
def advance_clock(monkeypatch: pytest.MonkeyPatch) -> AdvanceClock:
    """Moves the clock of everything in this process."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def advance(seconds: float) -> None:
        ahead[0] += seconds

    return advance


def at(seconds: float) -> str:
    return iso(time.time() + seconds)


def add(api: AgentApi, content: bytes, *, sequence: int = 2, ahead: float = HOUR, **more: Any) -> str:
    signature = sha256(content)
    api.store.objects[signature] = content
    times = {"activate_at": at(ahead), "activate_until": at(ahead + 600)}
    return api.add("f", content, object=signature, sequence=sequence, **(times | more))


def staging_reports(api: AgentApi, transfer_id: str) -> list[dict[str, Any]]:
    return [one for one in api.results if one["transfer_id"] == transfer_id and one.get("staged_at")]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "data").iterdir())


def staged_file(root: Path) -> Path:
    (found,) = (root / "data").glob(".tidegate-*.part/*")
    return found


@pytest.fixture
def staged(api: AgentApi, root: Path, start_agent: StartAgent, advance_clock: AdvanceClock) -> tuple[str, Running]:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(V1)
    transfer, running = add(api, V2), start_agent()
    until(lambda: staging_reports(api, transfer), "it was not staged")
    return transfer, running


def test_staged_file_goes_in_place_at_its_time_only(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    transfer, _ = staged
    report = staging_reports(api, transfer)[0]
    assert (report["error_code"], report["progress"], report["size"]) == (115, 100, len(V2))
    assert (root / "data/f").read_bytes() == V1
    assert staged_file(root).read_bytes() == V2
    assert staged_file(root).stat().st_mode & 0o777 == 0o600
    time.sleep(0.3)
    assert not api.finals(transfer)

    advance_clock(HOUR)

    result = api.wait_for(transfer)
    assert (result["error_code"], result["size"]) == (0, len(V2))
    assert (root / "data/f").read_bytes() == V2
    assert names(root) == ["f"]
    assert [name for name, _ in api.store.requests] == [sha256(V2)], "it was fetched once"


def test_staged_transfer_is_not_downloaded_again(api: AgentApi, staged: tuple[str, Running]) -> None:
    polls = len(api.polls)
    until(lambda: len(api.polls) > polls + 2)

    assert len(api.store.requests) == 1
    assert len(staging_reports(api, staged[0])) == 1


def test_staging_is_reported_until_the_api_accepts_it(
    api: AgentApi, root: Path, start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    api.refuse_results = True
    transfer = add(api, V2)
    start_agent()
    until(lambda: list((root / "data").glob(".tidegate-*.part/*")) if (root / "data").exists() else None)
    time.sleep(0.5)
    assert not staging_reports(api, transfer)

    api.refuse_results = False

    assert until(lambda: staging_reports(api, transfer))


def test_cancel_before_the_time_removes_the_staged_file(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    transfer, running = staged
    api.transfers.pop(transfer)

    until(lambda: names(root) == ["f"])
    advance_clock(2 * HOUR)
    time.sleep(0.2)

    assert (root / "data/f").read_bytes() == V1
    assert not api.finals(transfer)
    assert running.agent._journal.staged() == []


def test_agent_restarted_before_the_time_switches_without_downloading(
    api: AgentApi, root: Path, staged: tuple[str, Running], start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    transfer, running = staged
    running.stop()
    start_agent()
    until(lambda: len(staging_reports(api, transfer)) == 2, "a restarted agent reports it again")
    assert (root / "data/f").read_bytes() == V1

    advance_clock(HOUR)

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").read_bytes() == V2
    assert len(api.store.requests) == 1


def test_agent_restarted_after_the_time_switches_at_once(
    api: AgentApi, root: Path, staged: tuple[str, Running], start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    transfer, running = staged
    running.stop()
    advance_clock(HOUR + 10)
    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").read_bytes() == V2


def test_agent_restarted_after_a_cancel_removes_the_file(
    api: AgentApi, root: Path, staged: tuple[str, Running], start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    transfer, running = staged
    running.stop()
    api.transfers.pop(transfer)
    advance_clock(HOUR + 10)
    start_agent()

    until(lambda: names(root) == ["f"])
    assert (root / "data/f").read_bytes() == V1


def test_transfer_listed_after_its_time_goes_in_place_on_arrival(
    api: AgentApi, root: Path, start_agent: StartAgent
) -> None:
    transfer = add(api, V2, ahead=-1)
    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert not staging_reports(api, transfer)
    assert (root / "data/f").read_bytes() == V2


def test_content_already_in_place_succeeds_at_once(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(V2)
    transfer = add(api, V2)
    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert names(root) == ["f"]


def test_changed_staged_file_fails_with_the_reason(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    file = staged_file(root)
    metadata = file.stat()
    file.write_bytes(V3)
    os.utime(file, ns=(metadata.st_atime_ns, metadata.st_mtime_ns))
    advance_clock(HOUR)

    result = api.wait_for(staged[0])

    assert result["error_code"] == Code.STAGED_FILE_LOST
    assert f"{file.parent} was changed before its activate_at" in result["error_msg"]
    assert (root / "data/f").read_bytes() == V1
    assert names(root) == ["f"]


def test_removed_staged_file_fails_with_the_reason(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    staged_file(root).unlink()
    advance_clock(HOUR)

    result = api.wait_for(staged[0])

    assert result["error_code"] == Code.STAGED_FILE_LOST
    assert "was removed before its activate_at" in result["error_msg"]
    assert (root / "data/f").read_bytes() == V1


def test_touched_staged_file_goes_in_place(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    os.utime(staged_file(root))
    advance_clock(HOUR)

    assert api.wait_for(staged[0])["error_code"] == 0
    assert (root / "data/f").read_bytes() == V2


@pytest.mark.parametrize("hard", [True, False])
def test_hard_linked_or_symlinked_staged_file_is_refused(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock, hard: bool
) -> None:
    file, other = staged_file(root), root / "other"
    if hard:
        os.link(file, other)
    else:
        other.write_bytes(V2)
        file.unlink()
        file.symlink_to(other)
    advance_clock(HOUR)

    assert api.wait_for(staged[0])["error_code"] == Code.STAGED_FILE_LOST
    assert (root / "data/f").read_bytes() == V1


def test_destination_that_cannot_be_replaced_fails_with_the_reason(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    (root / "data/f").unlink()
    (root / "data/f").mkdir()
    advance_clock(HOUR)

    result = api.wait_for(staged[0])

    assert result["error_code"] == Code.WRITE_FAILED
    assert "Is a directory" in result["error_msg"]
    assert names(root) == ["f"], "the staged file is removed"


def test_newer_content_at_the_path_supersedes_a_staged_file(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    signature = sha256(V3)
    api.store.objects[signature] = V3
    newer = api.add("f", V3, object=signature, sequence=3)
    assert api.wait_for(newer)["error_code"] == 0
    advance_clock(60)

    assert api.wait_for(staged[0])["error_code"] == Code.SUPERSEDED
    assert (root / "data/f").read_bytes() == V3
    assert names(root) == ["f"]


def test_delivery_of_the_same_content_keeps_the_staged_file(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    now = api.add("f", V2, object=sha256(V2), sequence=1, directory="/data")
    assert api.wait_for(now)["error_code"] == 0
    assert staged_file(root).read_bytes() == V2

    advance_clock(HOUR)

    assert api.wait_for(staged[0])["error_code"] == 0
    assert names(root) == ["f"]


def test_delivery_that_waits_for_a_staging_of_the_same_content_succeeds(
    api: AgentApi, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            # A busy disk: the delivery that waits for the part file notices the rename before the staging goes on.
            time.sleep(0.3)

    api.store.seconds_a_chunk = 0.2
    later = add(api, V2, sequence=2)
    start_agent()
    until(lambda: api.store.requests)
    monkeypatch.setattr(os, "fsync", fsync)
    now = add(api, V2, sequence=3, activate_at=None, activate_until=None)

    result = api.wait_for(now)

    assert result["error_code"] == 0, result
    assert (root / "data/f").read_bytes() == V2
    assert staging_reports(api, later)
    until(lambda: not list((root / "data").glob(".tidegate-*.part")))


def test_busy_workers_do_not_delay_the_switch(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    transfer = add(api, V2)
    start_agent(parallel=1)
    until(lambda: staging_reports(api, transfer))
    store.slow[sha256(V3)] = 0.5
    slow = api.add("slow", V3, object=sha256(V3))
    store.objects[sha256(V3)] = V3
    until(lambda: store.running)

    advance_clock(HOUR)

    assert api.wait_for(transfer)["error_code"] == 0
    assert not api.finals(slow), "the worker was busy all the time"


def test_unavailable_api_does_not_delay_the_switch(
    api: AgentApi, root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    api.unavailable = True
    advance_clock(HOUR)

    until(lambda: (root / "data/f").read_bytes() == V2)


def test_sweep_of_part_files_leaves_staged_files_alone(
    root: Path, staged: tuple[str, Running], advance_clock: AdvanceClock
) -> None:
    partials = staged[1].agent._partials
    partials._most_bytes, partials._seconds = 0, 0.0

    partials.sweep()

    assert staged_file(root).read_bytes() == V2


def test_agent_update_with_activate_at_is_refused(
    api: AgentApi, start_agent: StartAgent, advance_clock: AdvanceClock
) -> None:
    transfer = add(api, V2, directory="/.tidegate/agent")
    start_agent(self_update=True)

    assert "activate_at" in api.wait_for(transfer)["error_msg"]


# --- the decision


def transfer_at(ahead: float = 0.0, lasts: float = 600.0) -> Transfer:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
    times = {"activate_at": iso(start + ahead), "activate_until": iso(start + ahead + lasts)}
    return {"transfer_id": "tr-1", "container_id": "", "file_name": "f", "signature": "", **times}  # type: ignore[typeddict-item]


STAGED = Staged(transfer_at(), StagedFile(".x.part/key", "/data/f", FileMetadata(1, 2, 3, 4, 5)), "then", {"size": 3})
T = STAGED.activate_at


@pytest.mark.parametrize(
    ("now", "listed_at", "known_since", "action"),
    [
        (T - 0.001, None, T - 9, Action.WAIT),
        (T - 0.001, T - 1, T - 9, Action.WAIT),
        (T, T - 9000, T - 9999, Action.SWITCH),
        (T, None, T - 9, Action.CONFIRM),
        (T + CONFIRM_SECONDS - 1, None, T - 9, Action.CONFIRM),
        (T + CONFIRM_SECONDS, None, T - 9, Action.SWITCH),
        (T + 400, None, T + 399, Action.CONFIRM),
        (T + 400 + CONFIRM_SECONDS, None, T + 400, Action.SWITCH),
        (T + 601, T - 9000, T - 9999, Action.CONFIRM),
        (T + 601, None, T + 1, Action.CONFIRM),
        (T + 601, T + 590, T - 9999, Action.SWITCH),
        (T + 999_999, None, T - 9, Action.CONFIRM),
    ],
)
def test_next_action_of_a_staged_file(now: float, listed_at: float | None, known_since: float, action: Action) -> None:
    def decide(cancelled: bool) -> Action:
        return next_action(STAGED, now, cancelled=cancelled, listed_at=listed_at, known_since=known_since)

    assert decide(False) is action
    assert decide(True) is Action.REMOVE


def test_stored_record_of_a_staged_file_has_no_urls_or_secrets() -> None:
    secret = STAGED.transfer | {"url": "https://…", "swarm": {"accept": "secret"}}
    again = Staged.from_json(Staged(secret, STAGED.file, "then", STAGED.figures).to_json())

    assert again == Staged(STAGED.transfer, STAGED.file, "then", STAGED.figures)


def test_switcher_wakes_up_at_activate_at(tmp_path: Path) -> None:
    switched: list[float] = []
    stopping, journal, inbox = threading.Event(), Journal(tmp_path), Inbox()
    switcher = Switcher(
        journal, inbox, lambda _: switched.append(time.time()), lambda _: None, lambda *_: None, lambda: None, stopping
    )
    thread = threading.Thread(target=switcher.run)
    thread.start()
    moment = time.time() + 0.4
    transfer = STAGED.transfer | {"activate_at": iso(moment), "activate_until": iso(moment + 600)}
    one = Staged(transfer, STAGED.file, "", {})
    inbox.accept_poll([transfer | {"url": ""}], has_result=lambda _: False)
    switcher.add(one)
    until(lambda: switched)
    stopping.set()
    switcher.close()
    thread.join(5)

    assert -0.001 <= switched[0] - moment < 0.3


def test_newer_of_two_contents_for_one_moment_is_switched_first(tmp_path: Path) -> None:
    switched: list[str] = []
    inbox = Inbox()
    switcher = Switcher(
        Journal(tmp_path),
        inbox,
        lambda staged: switched.append(staged.transfer["transfer_id"]),
        lambda _: None,
        lambda *_: None,
        lambda: None,
        threading.Event(),
    )
    moment = time.time() - 1
    times = {"activate_at": iso(moment), "activate_until": iso(moment + 600)}
    staged: Any = STAGED.transfer | times
    older, newer = staged | {"transfer_id": "old", "sequence": 1}, staged | {"transfer_id": "new", "sequence": 2}
    inbox.accept_poll([each | {"url": ""} for each in (older, newer)], has_result=lambda _: False)
    for transfer in (older, newer):
        switcher.add(Staged(transfer, STAGED.file, "", {}))
    switcher.run_due()

    assert switched == ["new", "old"]


def test_journal_record_of_another_version_is_skipped(tmp_path: Path) -> None:
    journal, inbox = Journal(tmp_path), Inbox()
    journal.stage(("tr-0", ""), '{"of": "a later version"}', tmp_path / "x")
    journal.stage(STAGED.key, STAGED.to_json(), tmp_path / "y")
    switcher = Switcher(
        journal, inbox, lambda _: None, lambda _: None, lambda *_: None, lambda: None, threading.Event()
    )

    switcher.load()

    assert [result["transfer_id"] for result in inbox.unreported()] == ["tr-1"]


@pytest.mark.parametrize(
    "wrong", [{"activate_at": "soon"}, {"activate_until": "later"}, {"activate_until": 7}], ids=str
)
def test_staged_file_with_an_unreadable_time_does_not_hold_up_others(tmp_path: Path, wrong: dict[str, Any]) -> None:
    journal, inbox = Journal(tmp_path), Inbox()
    stored = json.loads(STAGED.to_json())
    stored["transfer"] |= {"transfer_id": "tr-0"} | wrong
    journal.stage(("tr-0", ""), json.dumps(stored), tmp_path / "x")
    journal.stage(STAGED.key, STAGED.to_json(), tmp_path / "y")
    switched: list[Staged] = []
    switcher = Switcher(
        journal, inbox, switched.append, lambda _: None, lambda *_: None, lambda: None, threading.Event()
    )

    switcher.load()
    inbox.accept_poll([STAGED.transfer | {"url": ""}], has_result=lambda _: False)
    switcher.run_due()

    assert [one.key for one in switched] == [STAGED.key]


def test_reported_progress_does_not_report_the_staging() -> None:
    inbox = Inbox()
    inbox.accept_poll([STAGED.transfer | {"url": ""}], has_result=lambda _: False)
    inbox.advance(STAGED.key, 50)
    reports = inbox.unreported()
    inbox.mark_staged(staged_result(STAGED))

    inbox.mark_reported(reports)

    assert inbox.unreported() == [staged_result(STAGED)]


def test_staged_entries_do_not_count_for_the_list_limit() -> None:
    staged: list[Transfer] = [STAGED.transfer | {"staged_at": "x"}] * (LIST_LIMIT + 1)

    assert not is_truncated(staged)
    assert is_truncated([STAGED.transfer] * LIST_LIMIT)
    assert is_truncated(staged * 10)
    assert len(staged * 10) >= STAGED_LIST_LIMIT
