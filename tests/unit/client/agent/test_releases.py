"""Releases on a host: whole revisions in place, hooks and checks, the way back, kills in between, drift."""

from __future__ import annotations

import json
import os
import pwd
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import ME, AgentApi, sha256
from tidegate_client.agent import releases
from tidegate_client.agent.delivery import Delivery
from tidegate_client.agent.disk import Fence, Partials
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.releases import Hook, HostReleases, Ran, State, allowed_hook, run_hook
from tidegate_client.errors import UsageError

ONE, TWO, THREE = b"one" * 1000, b"two" * 1000, b"three" * 1000


def file_of(content: bytes, name: str = "app.conf", **more: Any) -> dict[str, Any]:
    fields = {"file_name": name, "target_file_dir": "/data", "target_user": ME, "mode": "0640"}
    return fields | {"signature": sha256(content), "size": len(content)} | more


def goal_of(revision: int, *files: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {"name": "app", "revision": revision, "hold": False, "keep": 2, "heal": False}
    return fields | {"files": list(files)} | more


def until(condition: Callable[[], Any], what: str = "") -> Any:
    deadline = idle_clock() + 30
    while not (found := condition()):
        assert idle_clock() < deadline, what or "the condition did not become true"
        time.sleep(0.02)
    return found


def put(api: AgentApi, *goals: dict[str, Any], contents: tuple[bytes, ...] = (ONE, TWO, THREE)) -> None:
    for content in contents:
        api.store.objects[sha256(content)] = content
    api.goals = list(goals)


def reported(api: AgentApi, revision: int, state: str) -> dict[str, Any]:
    """Waits for this report."""

    def found() -> dict[str, Any] | None:
        said = [one for ask in list(api.asks) for one in ask["releases"]]
        return next((one for one in said if (one["revision"], one["state"]) == (revision, state)), None)

    return dict(until(found, f"revision {revision} {state} was not reported: {api.asks[-3:]}"))


def script(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def hidden(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".tidegate-")]


# --- the whole agent


def test_revision_is_put_in_place_with_owner_and_mode(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, file_of(ONE), file_of(TWO, "other.conf", mode="0600")))
    start_agent()
    reported(api, 1, "current")
    first, second = root / "data/app.conf", root / "data/other.conf"
    assert (first.read_bytes(), second.read_bytes()) == (ONE, TWO)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (first, second)] == [0o640, 0o600]
    assert hidden(root / "data") == []


def test_file_that_is_on_its_way_is_not_sent_again(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    """Each file that arrives makes the host ask, while the others are still on their way."""
    files = [file_of(content, f"{number}.conf") for number, content in enumerate((ONE, TWO, THREE))]
    put(api, goal_of(1, *files))
    start_agent(parallel=1)
    reported(api, 1, "current")
    assert len(api.transfers) == 3
    assert (root / "data/2.conf").read_bytes() == THREE


def test_file_that_did_not_arrive_is_asked_for_again(
    api: AgentApi, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "ASK_AGAIN", 0.5)
    put(api, goal_of(1, file_of(ONE)))
    monkeypatch.setattr(AgentApi, "_inbox", lambda *_: [])
    start_agent()
    until(lambda: len(api.transfers) > 1, "the lost file was not asked for again")


def test_going_back_moves_no_byte(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, file_of(ONE)))
    start_agent()
    reported(api, 1, "current")
    api.goals = [goal_of(2, file_of(TWO))]
    reported(api, 2, "current")
    transfers = len(api.transfers)
    api.goals = [goal_of(3, file_of(ONE))]
    reported(api, 3, "current")
    assert (root / "data/app.conf").read_bytes() == ONE
    assert len(api.transfers) == transfers == 2


def test_content_in_another_directory_is_transferred_to_the_new_one(
    api: AgentApi, start_agent: StartAgent, root: Path
) -> None:
    put(api, goal_of(1, file_of(ONE)))
    start_agent()
    reported(api, 1, "current")
    api.goals = [goal_of(2, file_of(ONE), file_of(ONE, target_file_dir="/other"))]
    reported(api, 2, "current")
    assert (root / "other/app.conf").read_bytes() == ONE


def test_held_revision_is_staged_and_not_put_in_place(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, file_of(ONE), hold=True))
    start_agent()
    reported(api, 1, "staged")
    assert not (root / "data/app.conf").exists()
    api.goals = [goal_of(1, file_of(ONE))]
    reported(api, 1, "current")


def test_lower_number_changes_nothing(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(5, file_of(ONE)))
    running = start_agent()
    reported(api, 5, "current")
    api.goals = [goal_of(4, file_of(TWO))]
    asked = len(api.asks)
    running.agent._releases.trigger()
    until(lambda: len(api.asks) > asked)
    time.sleep(0.2)
    assert (root / "data/app.conf").read_bytes() == ONE


def test_failing_hook_brings_the_former_files_back(
    api: AgentApi, start_agent: StartAgent, root: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    hook = script(
        tmp_path,
        "reload",
        f'echo "$TIDEGATE_EVENT $TIDEGATE_REVISION $(cat {root}/data/app.conf | head -c 3)" >> {seen}\n'
        '[ "$TIDEGATE_REVISION" != 2 ] || { echo "password=hunter2 broken"; exit 7; }',
    )
    put(api, goal_of(1, file_of(ONE), hook="reload"))
    start_agent(hooks={"reload": Hook(hook)})
    reported(api, 1, "current")
    api.goals = [goal_of(2, file_of(TWO), file_of(THREE, "new.conf"), hook="reload")]
    said = reported(api, 2, "failed")
    assert (root / "data/app.conf").read_bytes() == ONE
    assert not (root / "data/new.conf").exists()
    assert said["hook"]["code"] == 7
    assert "broken" in said["hook"]["output"]
    assert "hunter2" not in json.dumps(said)
    assert seen.read_text().split("\n")[:3] == ["activate 1 one", "activate 2 two", "rollback 2 one"]
    api.goals = [goal_of(3, file_of(TWO), hook="reload")]
    reported(api, 3, "current")
    assert (root / "data/app.conf").read_bytes() == TWO


def test_failing_health_check_brings_the_former_files_back(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    def page(handler: Handler) -> None:
        handler.answer(200 if (root / "data/app.conf").read_bytes() == ONE else 500, b"not well")

    with serve(page) as port:
        check = {"url": f"http://127.0.0.1:{port}/healthz", "timeout_s": 1, "soak_s": 0}
        put(api, goal_of(1, file_of(ONE), health=check))
        start_agent(check_ports=frozenset({port}))
        reported(api, 1, "current")
        api.goals = [goal_of(2, file_of(TWO), health=check)]
        said = reported(api, 2, "failed")
    assert said["health"] == {"code": 500, "output": "not well"}
    assert (root / "data/app.conf").read_bytes() == ONE


def soaking(port: int) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/healthz", "timeout_s": 1, "soak_s": 600}


def test_revision_that_fails_while_it_soaks_goes_back_by_itself(
    api: AgentApi, start_agent: StartAgent, root: Path, tmp_path: Path
) -> None:
    """Nobody but the host decides: the API still wants the revision."""
    sick = threading.Event()
    events = tmp_path / "events"
    hook = script(tmp_path, "reload", f'echo "$TIDEGATE_EVENT $TIDEGATE_REVISION" >> {events}')

    def page(handler: Handler) -> None:
        handler.answer(500 if sick.is_set() else 200, b"")

    with serve(page) as port:
        more = {"hook": "reload", "health": soaking(port)}
        put(api, goal_of(1, file_of(ONE), **more))
        running = start_agent(check_ports=frozenset({port}), hooks={"reload": Hook(hook)})
        reported(api, 1, "current")
        api.goals = [goal_of(2, file_of(TWO), file_of(THREE, "new.conf"), **more)]
        reported(api, 2, "current")
        sick.set()
        running.agent._releases._wake.set()
        said = reported(api, 2, "failed")
        assert (said["reason"], said["placed"]) == ("it was no longer healthy", 1)
        assert (root / "data/app.conf").read_bytes() == ONE
        assert not (root / "data/new.conf").exists()
        until(lambda: events.read_text().splitlines()[-1] == "rollback 2")
        sick.clear()
        api.goals = [goal_of(3, file_of(ONE), **more)]
        reported(api, 3, "current")
        sent = [transfer["signature"] for transfer in api.transfers.values()]
        assert sent.count(sha256(ONE)) == 1, "the content that was kept came again"


@pytest.mark.parametrize(
    "more",
    [{"hook": "reload"}, {"health": {"url": "http://127.0.0.1:9/", "timeout_s": 1, "soak_s": 0}}],
    ids=["hook", "check"],
)
def test_what_the_operator_did_not_allow_is_refused_before_any_change(
    api: AgentApi, start_agent: StartAgent, root: Path, more: dict[str, Any]
) -> None:
    put(api, goal_of(1, file_of(ONE), **more))
    start_agent()
    assert "this host allows no" in reported(api, 1, "failed")["reason"]
    assert not (root / "data").exists()


def test_path_outside_the_fence_fails_the_revision(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    (root / "data").mkdir()
    from tidegate_client.agent.disk import Permits

    put(api, goal_of(1, file_of(ONE, target_file_dir="/etc")))
    start_agent(permits=Permits(("/data",)))
    reported(api, 1, "failed")
    assert not (root / "etc").exists()


def test_plain_transfer_to_a_path_of_a_release_is_refused(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    put(api, goal_of(1, file_of(ONE)))
    start_agent()
    reported(api, 1, "current")
    plain = api.add("app.conf", TWO, object=sha256(TWO), sequence=99)
    result = api.wait_for(plain)
    assert (result["error_code"], "release app" in result["error_msg"]) == (1010, True)
    assert (root / "data/app.conf").read_bytes() == ONE


def test_forced_transfer_replaces_the_file_and_shows_as_drift(
    api: AgentApi, start_agent: StartAgent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "DRIFT_EVERY", 0.2)
    put(api, goal_of(1, file_of(ONE)))
    start_agent()
    reported(api, 1, "current")
    forced = api.add("app.conf", TWO, object=sha256(TWO), sequence=99, force=True)
    assert api.wait_for(forced)["error_code"] == 0
    assert (root / "data/app.conf").read_bytes() == TWO
    reported(api, 1, "drifted")


def test_release_that_is_no_longer_for_the_host_leaves_its_files(
    api: AgentApi, start_agent: StartAgent, root: Path
) -> None:
    put(api, goal_of(1, file_of(ONE)))
    start_agent()
    reported(api, 1, "current")
    api.goals = []
    until(lambda: api.asks[-1]["releases"] == [])
    plain = api.add("app.conf", TWO, object=sha256(TWO), sequence=99)
    assert api.wait_for(plain)["error_code"] == 0
    assert (root / "data/app.conf").read_bytes() == TWO


def test_changed_file_is_reported_and_healed(
    api: AgentApi, start_agent: StartAgent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "DRIFT_EVERY", 0.2)
    put(api, goal_of(1, file_of(ONE)))
    running = start_agent()
    reported(api, 1, "current")
    (root / "data/app.conf").write_bytes(b"changed by hand")
    said = reported(api, 1, "drifted")
    assert said["drift"] == ["/data/app.conf: its content was changed"]
    api.goals = [goal_of(1, file_of(ONE), heal=True)]
    running.agent._releases.trigger()
    until(lambda: (root / "data/app.conf").read_bytes() == ONE)
    until(lambda: api.asks[-1]["releases"][0]["state"] == "current")


def test_report_says_which_revision_is_in_place_and_when_it_was_checked(
    api: AgentApi, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(api, goal_of(1, file_of(ONE)))
    monkeypatch.setattr(releases, "_now", lambda: "2026-01-31T09:00:00Z")
    start_agent()
    checked = {"checked_at": "2026-01-31T09:00:00Z"}
    assert reported(api, 1, "current") == {"name": "app", "revision": 1, "state": "current"} | checked
    api.goals = [goal_of(2, file_of(TWO), hold=True)]
    assert reported(api, 2, "staged") == {"name": "app", "revision": 2, "state": "staged", "placed": 1} | checked
    api.goals = [goal_of(2, file_of(TWO), hook="unknown")]
    assert reported(api, 2, "failed")["placed"] == 1
    api.goals = [goal_of(3, file_of(TWO))]
    assert "placed" not in reported(api, 3, "current")


def test_look_without_a_find_changes_the_time_and_calls_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    with disk.life() as host:
        disk.bring(host, ONE, "app.conf")
        disk.api = [goal_of(1, file_of(ONE))]
        host._round()
        told, saved = len(disk.told), host.delivery.journal.releases()
        monkeypatch.setattr(releases, "_now", lambda: "2030-01-31T09:00:00Z")
        host._look_for_drift()
        assert (len(disk.told), host._wake.is_set()) == (told, False)
        assert host.delivery.journal.releases() == saved
        host._round()
        assert disk.told[-1][0]["checked_at"] == "2030-01-31T09:00:00Z"


def test_contents_of_older_revisions_are_removed(api: AgentApi, start_agent: StartAgent, root: Path) -> None:
    contents = tuple(bytes([65 + number]) * 500 for number in range(6))
    put(api, contents=contents)
    running = start_agent()
    for number, content in enumerate(contents, 1):
        api.goals = [goal_of(number, file_of(content), keep=2)]
        reported(api, number, "current")
    assert len(hidden(root / "data")) == 2
    assert len(running.agent._journal.kept()) == 2


# --- kills: the same steps on one disk, with a process that ends anywhere


class Killed(BaseException):
    pass


class Disk:
    """The journal and the files of a host, over several lives of its agent."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.state = tmp_path / "root", tmp_path / "state"
        (self.root / "data").mkdir(parents=True)
        self.api: list[dict[str, Any]] = []
        self.told: list[list[dict[str, Any]]] = []
        self.has: list[list[str]] = []

    @contextmanager
    def life(self) -> Iterator[HostReleases]:
        journal, fence = Journal(self.state), Fence(self.root)
        inbox = Inbox(lambda *_args, **_more: None)
        delivery = Delivery(
            urllib3.PoolManager(), inbox, journal, Partials(journal, fence), fence, "h", threading.Event()
        )
        disk = self

        class Agents:
            def ask(self, _agent: str, sent: list[dict[str, Any]], has: list[str]) -> list[dict[str, Any]]:
                disk.told.append(sent)
                disk.has.append(has)
                return disk.api

        class FakeClient:
            agents = Agents()

        host = HostReleases(FakeClient(), "h", delivery, threading.Event())  # type: ignore[arg-type]
        host.load()
        try:
            yield host
        finally:
            journal.close()
            fence.close()

    def bring(self, host: HostReleases, content: bytes, name: str) -> None:
        """Puts content beside its place, as a transfer does."""
        with (
            host._place(file_of(content, name)) as place,
            host.delivery.partials.opened(place, ("h", sha256(content))) as part,
        ):
            part.file.write(content)
            part.file.flush()
            host.delivery.journal.keep(place.path, sha256(content), part.hidden)

    def contents(self) -> list[bytes | None]:
        paths = [self.root / "data" / name for name in ("a", "b")]
        return [path.read_bytes() if path.exists() else None for path in paths]


def test_killed_agent_finishes_the_switch_that_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that changes the disk or the journal: after a restart both files are of one revision."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        disk.api = [goal_of(1, file_of(ONE, "a"), file_of(ONE, "b"))]
        with disk.life() as host:
            for name in ("a", "b"):
                disk.bring(host, ONE, name)
            host._round()
        assert disk.contents() == [ONE, ONE]
        disk.api = [goal_of(2, file_of(TWO, "a"), file_of(TWO, "b"))]
        ended = _killed_at(disk, kills, monkeypatch, HostReleases._round, (TWO,))
        with disk.life() as host:
            begun = any(state.begun for state in host._states.values())
            if not begun:
                assert disk.contents() in ([ONE, ONE], [TWO, TWO]), kills
            host._round()
        assert disk.contents() == [TWO, TWO], kills
        assert [(one["revision"], one["state"]) for one in disk.told[-1]] == [(2, "current")]
        kills += 1
    assert kills > 10


def _killed_at(
    disk: Disk,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[HostReleases], None],
    contents: tuple[bytes, ...] = (),
) -> bool:
    """Lets the process end at the nth call. True if it ended before, by itself."""
    left = [number]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **more)

        return call

    with disk.life() as host:
        host.check_ports = frozenset({80})
        for content in contents:
            for name in ("a", "b"):
                disk.bring(host, content, name)
        with monkeypatch.context() as patched:
            for name in ("rename", "link", "unlink", "mkdir", "rmdir"):
                patched.setattr(os, name, dying(getattr(os, name)))
            for name in ("save_release", "drop_kept", "keep", "part_closed"):
                patched.setattr(Journal, name, dying(getattr(Journal, name)))
            try:
                step(host)
            except Killed:
                return False
    return True


def test_killed_agent_finishes_going_back_from_a_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that changes the disk or the journal: both files are of one revision, and it stays refused."""
    well = [True]
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200 if well[0] else 500, passed=well[0]))
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        well[0] = True
        for number, content in ((1, ONE), (2, TWO)):
            files = [file_of(content, name) for name in ("a", "b")]
            disk.api = [goal_of(number, *files, health=soaking(80))]
            with disk.life() as host:
                host.check_ports = frozenset({80})
                for name in ("a", "b"):
                    disk.bring(host, content, name)
                host._round()
        assert disk.contents() == [TWO, TWO]
        well[0] = False
        ended = _killed_at(disk, kills, monkeypatch, HostReleases._soak)
        well[0] = True
        with disk.life() as host:
            host.check_ports = frozenset({80})
            failed = host._states["app"].state == "failed"
            if not failed:
                assert disk.contents() == [TWO, TWO], kills
                well[0] = False
                host._soak()
            host._round()
        assert disk.contents() == [ONE, ONE], kills
        assert [(one["revision"], one["state"], one["placed"]) for one in disk.told[-1]] == [(2, "failed", 1)]
        kills += 1
    assert kills > 5


def test_rollback_while_soaking_needs_no_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
    disk = Disk(tmp_path)
    with disk.life() as host:
        host.check_ports = frozenset({80})
        for number, content in ((1, ONE), (2, TWO), (3, ONE)):
            disk.api = [goal_of(number, file_of(content, "a"), health=soaking(80))]
            if number < 3:
                disk.bring(host, content, "a")
            assert number < 3 or sha256(ONE) in host._contents()
            host._round()
    assert disk.contents()[0] == ONE


def test_soak_that_passes_keeps_the_former_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
    disk = Disk(tmp_path)
    with disk.life() as host:
        host.check_ports = frozenset({80})
        for number, content in ((1, ONE), (2, TWO)):
            disk.api = [goal_of(number, file_of(content, "a"), health=soaking(80) | {"soak_s": 0.01})]
            disk.bring(host, content, "a")
            host._round()
        time.sleep(0.02)
        host._soak()
        assert [signature for _, signature in host.delivery.journal.kept()] == [sha256(ONE)]
        assert host._states["app"].soaking == ()


def test_rename_that_fails_undoes_the_ones_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"), file_of(ONE, "b"))]
    with disk.life() as host:
        for name in ("a", "b"):
            disk.bring(host, ONE, name)
        host._round()
        disk.api = [goal_of(2, file_of(TWO, "a"), file_of(TWO, "b"))]
        for name in ("a", "b"):
            disk.bring(host, TWO, name)
        real = HostReleases._put

        def put_once(self: HostReleases, one: releases.SwitchedFile, **more: Any) -> None:
            if one.file["file_name"] == "b":
                raise OSError(28, "No space left on device")
            real(self, one, **more)

        with monkeypatch.context() as patched:
            patched.setattr(HostReleases, "_put", put_once)
            host._round()
    assert disk.contents() == [ONE, ONE]
    assert disk.told[-1][0]["state"] == "failed"
    assert "No space" in disk.told[-1][0]["reason"]


def test_disk_that_fills_while_staging_fails_the_revision_and_keeps_the_former(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"))]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._round()
        disk.api = [goal_of(2, file_of(TWO, "a"))]
        host.delivered({"signature": sha256(TWO)}, OSError(28, "No space left on device"))  # type: ignore[typeddict-item]
        host._round()
    assert disk.contents() == [ONE, None]
    assert (disk.told[-1][0]["state"], disk.told[-1][0]["placed"]) == ("failed", 1)
    assert "No space" in disk.told[-1][0]["reason"]


def test_agent_says_which_hooks_and_ports_it_allows(tmp_path: Path) -> None:
    with Disk(tmp_path).life() as host:
        assert host.allows == "-"
        host.hooks, host.check_ports = {"reload": Hook(tmp_path), "check": Hook(tmp_path)}, frozenset({8080, 81})
        assert host.allows == "check,reload,:81,:8080"
        host.hooks = {f"hook-{number:03d}": Hook(tmp_path) for number in range(200)}
        assert host.allows is None


def test_content_on_its_way_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, transfer = Disk(tmp_path), {"signature": sha256(ONE), "release": "app"}
    disk.api = [goal_of(1, file_of(ONE, "a"), sending=[sha256(ONE)])]

    def asked() -> bool:
        """Whether the host, told to ask, asks for the content."""
        host._round()
        return sha256(ONE) not in disk.has[-1]

    with disk.life() as host:
        assert [asked(), asked()] == [True, False]
        host._coming[sha256(ONE)] = 0.0
        assert [asked(), asked()] == [True, False]
        host.coming(transfer)  # type: ignore[arg-type]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 3000)
        assert not asked()
        host.delivered(transfer, OSError(5, "Input/output error"))  # type: ignore[arg-type]
        host._not_delivered.clear()
        assert asked()
        host.coming(transfer, seconds=0.0)  # type: ignore[arg-type]
        assert asked()


def test_file_that_was_there_before_the_release_comes_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (disk.root / "data/a").write_bytes(b"made by hand")
    failing = script(tmp_path, "fails", "exit 1")
    disk.api = [goal_of(1, file_of(ONE, "a"), hook="fails")]
    with disk.life() as host:
        host.hooks = {"fails": Hook(failing)}
        disk.bring(host, ONE, "a")
        host._round()
    assert disk.contents() == [b"made by hand", None]


# --- hooks


def test_hook_gets_no_arguments_and_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_KEY", "tg_key1_secret")
    ran = run_hook(Hook(script(tmp_path, "h", 'echo "$# $TIDEGATE_RELEASE"; env')), {"TIDEGATE_RELEASE": "app"}, 10)
    assert ran.output.startswith("0 app\n")
    assert "TIDEGATE_KEY" not in ran.output


def test_hook_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    began = idle_clock()
    ran = run_hook(Hook(script(tmp_path, "h", "echo begun; sleep 600 & sleep 600")), {}, 0.5)
    assert idle_clock() - began < 10
    assert not ran.passed
    assert "begun" in ran.output
    assert "ended after" in ran.output


def test_output_of_a_gigabyte_is_cut(tmp_path: Path) -> None:
    ran = run_hook(Hook(script(tmp_path, "h", "head -c 200000000 /dev/zero | tr '\\0' x; echo; echo last")), {}, 60)
    assert ran.passed
    assert len(ran.output) <= 4096
    assert ran.output.endswith("last\n")


def test_output_has_no_control_characters_and_no_secrets(tmp_path: Path) -> None:
    ran = run_hook(Hook(script(tmp_path, "h", r"printf '\033[31mred tg_key1_abc token: xyz\n'")), {}, 10)
    assert ran == Ran(0, "[31mred tg_… token: …\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a hook as another user")
def test_hook_runs_as_the_named_user() -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        ran = run_hook(Hook(script(Path(made), "h", "id -un"), pwd.getpwuid(65534).pw_name), {}, 10)
    assert ran.output.strip() == pwd.getpwuid(65534).pw_name


def test_hook_that_others_may_change_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path, "h", "true")
    assert allowed_hook(f"reload={path}") == ("reload", Hook(path))
    path.chmod(0o777)
    with pytest.raises(UsageError, match="may change"):
        allowed_hook(f"reload={path}")


@pytest.mark.parametrize("text", ["reload", "reload=relative", "=/bin/true", "x=/does/not/exist", "x=/etc/passwd"])
def test_wrong_hook_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        allowed_hook(text)


def test_state_survives_the_journal() -> None:
    state = State(
        "app", goal_of(1, file_of(ONE)), 3, "failed", "why", begun=(releases.SwitchedFile(file_of(ONE), ("p", "s")),)
    )
    assert State.from_json(state.to_json()) == state
