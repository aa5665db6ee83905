"""Two contents for one path: the newer one wins, whichever arrives last."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, Store, sha256
from tidegate_client.agent import journal as journal_module
from tidegate_client.agent.codes import Code
from tidegate_client.agent.disk import PathLocks
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.threads import WorkQueue
from tidegate_client.inputs import Transfer

V1, V2 = (random.Random(seed).randbytes(300_000) for seed in (1, 2))


def add(api: AgentApi, content: bytes, sequence: int | None, **more: Any) -> str:
    signature = sha256(content)
    api.store.objects[signature] = content
    return api.add("f", content, object=signature, sequence=sequence, **more)


def test_slow_older_content_does_not_replace_newer(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    store.slow[sha256(V1)] = 0.4
    old, new = add(api, V1, 1), add(api, V2, 2)

    start_agent(parallel=4)

    assert api.wait_for(new)["error_code"] == 0
    refused = api.wait_for(old)
    assert refused["error_code"] == 409
    assert refused["error_msg"].startswith("superseded by ")
    assert (root / "data/f").read_bytes() == V2
    assert [path.name for path in (root / "data").iterdir()] == ["f"]


def test_older_content_after_a_restart_is_refused_without_download(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    new = add(api, V2, 2)
    first = start_agent()
    api.wait_for(new)
    first.stop()
    old = add(api, V1, 1)

    start_agent()

    assert api.wait_for(old)["error_code"] == Code.SUPERSEDED
    assert (root / "data/f").read_bytes() == V2
    assert [name for name, _ in store.requests] == [sha256(V2)]


def test_older_transfer_of_the_current_content_succeeds(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    new = add(api, V2, 2, mode="0600")
    start_agent()
    api.wait_for(new)

    old = add(api, V2, 1, mode="0666")

    assert api.wait_for(old)["error_code"] == 0
    assert (root / "data/f").stat().st_mode & 0o777 == 0o600


def test_symlinked_directory_is_the_same_path(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    (root / "real").mkdir()
    (root / "alias").symlink_to("real")
    new = add(api, V2, 2, directory="/real")
    start_agent()
    api.wait_for(new)

    old = add(api, V1, 1, directory="/alias")

    assert api.wait_for(old)["error_code"] == Code.SUPERSEDED
    assert (root / "real/f").read_bytes() == V2


def test_rollback_in_a_later_window_is_newer(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    agent = start_agent()
    for sequence, content in enumerate((V1, V2, V1), start=1):
        assert api.wait_for(add(api, content, sequence))["error_code"] == 0
    agent.stop()

    assert (root / "data/f").read_bytes() == V1


def test_transfers_without_sequence_are_applied_in_order(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    start_agent()
    for content in (V1, V2):
        assert api.wait_for(add(api, content, None))["error_code"] == 0
    assert (root / "data/f").read_bytes() == V2


def transfer(number: int, sequence: int) -> Transfer:
    return {
        "transfer_id": f"tr-{number}",
        "container_id": "",
        "url": "",
        "expires_at": "",
        "file_name": "f",
        "target_file_dir": "/",
        "target_user": "root",
        "signature": "",
        "sequence": sequence,
    }


@pytest.mark.parametrize("seed", range(20))
def test_inbox_and_queue_order_transfers_by_sequence(seed: int) -> None:
    items = [transfer(number, number) for number in range(30)]
    random.Random(seed).shuffle(items)

    new, _ = Inbox().accept_poll(items, has_result=lambda _: False)
    queue = WorkQueue()
    for item in reversed(new):
        queue.put(item)
    taken = [queue.get() for _ in items]

    assert [item["sequence"] for item in new] == list(range(30))
    assert [item["sequence"] for item in taken if item] == list(range(30))


def test_postponed_transfer_lets_others_pass_and_returns() -> None:
    now = [0.0]
    queue = WorkQueue(clock=lambda: now[0])
    queue.put(transfer(1, 1), delay=5)
    queue.put(transfer(2, 2))
    first = queue.get()
    now[0] = 5.0
    second = queue.get()

    assert (first and first["transfer_id"], second and second["transfer_id"]) == ("tr-2", "tr-1")


def test_closed_queue_releases_waiting_workers() -> None:
    queue = WorkQueue()
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(queue.get()))
    thread.start()
    queue.close()
    thread.join(5)

    assert taken == [None]


def test_path_is_changed_by_one_worker_at_a_time() -> None:
    locks, inside, most = PathLocks(), [0], [0]

    def work() -> None:
        with locks.hold(Path("/f")):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.005)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1]
    assert not locks._locks, "unused locks are removed"


def test_clock_jump_removes_no_sequence_from_the_journal(tmp_path: Path) -> None:
    now = [1_000_000.0]
    journal = Journal(tmp_path, now=lambda: now[0])
    journal.apply(Path("/f"), Applied(7, "a" * 64))
    for jump in (10 * 365 * 86400.0, -1e9):
        now[0] += jump
        journal.apply(Path("/other"), Applied(1, "b" * 64))
        assert journal.applied(Path("/f")) == Applied(7, "a" * 64)


def test_full_journal_drops_the_oldest_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REMEMBERED_PATHS", 3)
    journal = Journal(tmp_path)
    for number in range(5):
        journal.apply(Path(f"/{number}"), Applied(number, "a"))
    assert [bool(journal.applied(Path(f"/{number}"))) for number in range(5)] == [False, False, True, True, True]
