"""Releases on a host: whole revisions in place, hooks and checks, the way back, kills in between, drift."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import urllib3

from tests.support.agent_disk import Disk, file_of, goal_of
from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock, until
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, sha256
from tidegate_client.agent import releases
from tidegate_client.agent.journal import Journal
from tidegate_client.agent.releases import Hook, HostReleases, Ran, State, allowed_hook, check_url, run_hook
from tidegate_client.errors import TidegateError, UsageError

ONE, TWO, THREE = b"one" * 1000, b"two" * 1000, b"three" * 1000


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
        assert sorted(sent) == sorted(map(sha256, (ONE, TWO, THREE))), "a content came again"


@pytest.mark.parametrize(
    "more",
    [{"hook": "reload"}, {"health": {"url": "http://127.0.0.1:9/", "timeout_s": 1, "soak_s": 0}}],
    ids=["hook", "check"],
)
def test_what_the_operator_did_not_allow_is_refused_before_any_change(
    api: AgentApi, start_agent: StartAgent, root: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The content that the API sends with the goal may come before or after the host has refused it.
    monkeypatch.setattr(AgentApi, "_inbox", lambda *_: [])
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


@pytest.mark.parametrize("directory", ["/link", "/data", "/data/."])
def test_path_of_a_release_behind_a_symlink_is_refused(
    api: AgentApi, start_agent: StartAgent, root: Path, directory: str
) -> None:
    (root / "data").mkdir()
    (root / "link").symlink_to("data")
    put(api, goal_of(1, file_of(ONE, target_file_dir="/link")))
    start_agent()
    reported(api, 1, "current")
    plain = api.add("app.conf", TWO, object=sha256(TWO), sequence=99, target_file_dir=directory)
    assert api.wait_for(plain)["error_code"] == 1010
    api.goals = [*api.goals, goal_of(1, file_of(TWO, target_file_dir=directory)) | {"name": "other"}]

    def refused() -> bool:
        last = {one["name"]: one for one in api.asks[-1]["releases"]}
        return "other" in last and last["other"]["state"] == "failed"

    until(refused, "the other release was not refused")
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


def test_content_that_arrives_during_the_ask_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    contents = HostReleases._contents

    def arrives_then(host: HostReleases) -> list[str]:
        found = contents(host)
        host._coming.pop(sha256(ONE), None)
        return found

    with disk.life() as host:
        host._coming[sha256(ONE)] = time.monotonic() + 60
        monkeypatch.setattr(HostReleases, "_contents", arrives_then)
        host._round()
    assert disk.has[0] == [sha256(ONE)]


def test_content_that_arrives_while_it_is_looked_for_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, has = Disk(tmp_path), HostReleases._has
    disk.api = [goal_of(1, file_of(ONE, "a"), file_of(TWO, "b"), sending=[sha256(ONE), sha256(TWO)])]

    def arrives_after(host: HostReleases, file: Any, revision: int) -> bool:
        found = has(host, file, revision)
        if file["signature"] == sha256(ONE) and not found:
            disk.bring(host, ONE, "a")
            host.delivered(cast(Any, {"signature": sha256(ONE)}))
        return found

    with disk.life() as host:
        monkeypatch.setattr(HostReleases, "_has", arrives_after)
        host._round()
    assert len(disk.has) > 1
    assert disk.has[1] == sorted(map(sha256, (ONE, TWO)))


def test_trigger_as_the_pause_ends_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, rounds = Disk(tmp_path), list[int]()
    with disk.life() as host:

        class Late(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                if self.is_set():
                    return True
                assert not rounds or host.stopping.is_set()
                self.set()
                return False

        def one_round(_self: HostReleases) -> None:
            rounds.append(1)
            host.stopping.set()

        host._wake = Late()
        monkeypatch.setattr(HostReleases, "_round", one_round)
        limit = threading.Timer(5, host.stopping.set)
        limit.start()
        host.run()
        limit.cancel()
    assert rounds == [1]


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


def killed_at(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    system: Iterable[str],
    journal: Iterable[str],
    step: Callable[[], None],
) -> bool:
    """Lets the process end at the nth of the named calls. True if it ended before, by itself.

    Calls of other threads do not count: those of an earlier test may still end.
    """
    left, here = [number], threading.current_thread()

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if threading.current_thread() is here:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
            return real(*args, **more)

        return call

    with monkeypatch.context() as patched:
        for name in system:
            patched.setattr(os, name, dying(getattr(os, name)))
        for name in journal:
            patched.setattr(Journal, name, dying(getattr(Journal, name)))
        try:
            step()
        except Killed:
            return False
    return True


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
    with disk.life() as host:
        host.check_ports = frozenset({80})
        for content in contents:
            for name in ("a", "b"):
                disk.bring(host, content, name)
        return killed_at(
            monkeypatch,
            number,
            ("rename", "link", "unlink", "mkdir", "rmdir"),
            ("save_release", "drop_kept", "keep", "part_closed"),
            lambda: step(host),
        )


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


def test_killed_agent_runs_the_hook_for_the_former_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook fails for the second revision. At every call that changes the disk or the journal: in the end the hook
    has run for the former files, which are in place."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        events = disk.root / "events"
        said = f"$TIDEGATE_EVENT $TIDEGATE_REVISION $(head -c 3 {disk.root}/data/a)"
        text = f'echo "{said}" >> {events}\n[ $TIDEGATE_REVISION != 2 ]'
        disk.hooks = {"reload": Hook(script(disk.root, "reload", text))}
        disk.api = [goal_of(1, file_of(ONE, "a"), file_of(ONE, "b"), hook="reload")]
        with disk.life() as host:
            for name in ("a", "b"):
                disk.bring(host, ONE, name)
            host._round()
        disk.api = [goal_of(2, file_of(TWO, "a"), file_of(TWO, "b"), hook="reload")]
        ended = _killed_at(disk, kills, monkeypatch, HostReleases._round, (TWO,))
        with disk.life() as host:
            host._round()
        assert disk.contents() == [ONE, ONE], kills
        assert [(one["revision"], one["state"], one["placed"]) for one in disk.told[-1]] == [(2, "failed", 1)], kills
        assert disk.told[-1][0]["hook"]["code"] == 1, kills
        assert events.read_text().splitlines()[-1] == "rollback 2 one", kills
        kills += 1
    assert kills > 10


def test_check_that_a_stop_cuts_short_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that restarts, to update itself for example, does not refuse a revision whose program still starts."""
    disk = Disk(tmp_path)
    real = releases.check_url
    with serve(lambda handler: handler.answer(500 if stopped else 200, b"")) as port:
        disk.api = [goal_of(1, file_of(ONE, "a"), health=soaking(port) | {"timeout_s": 60})]
        with disk.life() as host:
            host.check_ports = frozenset({port})
            stopped = [host.stopping]

            def check(*args: Any) -> Ran:
                host.stopping.set()
                return real(*args)

            monkeypatch.setattr(releases, "check_url", check)
            disk.bring(host, ONE, "a")
            host._round()
            assert host._states["app"].begun
        assert disk.told == [[]]
        monkeypatch.setattr(releases, "check_url", real)
        stopped.clear()
        with disk.life() as host:
            host.check_ports = frozenset({port})
            host._round()
    assert disk.contents()[0] == ONE
    assert disk.told[-1][0]["state"] == "current"


def test_soak_that_a_stop_cuts_short_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"), health=soaking(80))]
    with disk.life() as host:
        host.check_ports = frozenset({80})
        disk.bring(host, ONE, "a")
        host._round()
        monkeypatch.setattr(releases, "check_url", lambda *_: Ran(0, passed=False))
        host.stopping.set()
        host._soak()
        assert host._states["app"].state == "current"
        host.stopping.clear()
        host._soak()
        assert host._states["app"].state == "failed"


@pytest.mark.parametrize("event", ["activate", "rollback"])
def test_hook_that_a_stop_ends_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    """The service manager ends the agent's programs too."""
    disk = Disk(tmp_path)
    seen = tmp_path / "seen"
    ends = f"[ $TIDEGATE_EVENT != {event} ] || [ -e {seen}.{event} ] || {{ touch {seen}.{event}; kill -TERM $$; }}"
    text = f"echo $TIDEGATE_EVENT >> {seen}\n{ends}\n[ {event} = activate ] || [ $TIDEGATE_EVENT = rollback ]"
    disk.hooks = {"reload": Hook(script(tmp_path, "reload", text))}
    disk.api = [goal_of(1, file_of(ONE, "a"), hook="reload")]
    with disk.life() as host:
        real = releases.run_hook

        def run(hook: Hook, environment: dict[str, str], seconds: float) -> Ran:
            if environment["TIDEGATE_EVENT"] == event:
                host.stopping.set()
            return real(hook, environment, seconds)

        with monkeypatch.context() as patched:
            patched.setattr(releases, "run_hook", run)
            disk.bring(host, ONE, "a")
            host._round()
    with disk.life() as host:
        host._round()
    assert seen.read_text().splitlines()[-2:] == [event, event]
    assert disk.contents()[0] == (ONE if event == "activate" else None)
    assert disk.told[-1][0]["state"] == ("current" if event == "activate" else "failed")


def test_repairs_leave_the_former_content(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with disk.life() as host:
        for number, content in ((1, ONE), (2, TWO)):
            disk.api = [goal_of(number, file_of(content, "a"), heal=True)]
            disk.bring(host, content, "a")
            host._round()
        for _ in range(3):
            (disk.root / "data/a").write_bytes(b"changed by hand")
            host._look_for_drift()
            assert host._states["app"].drift
            disk.bring(host, TWO, "a")
            host._round()
            assert disk.contents()[0] == TWO
        assert sha256(ONE) in {signature for _, signature in host.delivery.journal.kept()}


def test_repair_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    runs = tmp_path / "runs"
    disk.hooks = {"reload": Hook(script(tmp_path, "reload", f"echo >> {runs}; ! [ -e {runs}.fails ]"))}
    disk.api = [goal_of(1, file_of(ONE, "a"), heal=True, hook="reload")]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._round()
        (disk.root / "data/a").write_bytes(b"changed by hand")
        (tmp_path / "runs.fails").touch()
        host._look_for_drift()
        disk.bring(host, ONE, "a")
        host._round()
        assert disk.told[-1][0]["state"] == "failed"
        assert not host._needs_asking()
        before = runs.read_text()
        disk.bring(host, ONE, "a")
        host._round()
        assert runs.read_text() == before


@pytest.mark.parametrize("fails", ["hook", "health"])
def test_rollback_that_fails_does_not_bring_back_what_it_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """That revision was withdrawn. Killed at every call that changes the disk or the journal, too."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
        for number, content in ((1, ONE), (2, TWO)):
            disk.api = [goal_of(number, *(file_of(content, name) for name in ("a", "b")))]
            with disk.life() as host:
                for name in ("a", "b"):
                    disk.bring(host, content, name)
                host._round()
        disk.hooks = {"reload": Hook(script(disk.root, "reload", f"[ {fails} != hook ]"))}
        monkeypatch.setattr(releases, "check_url", lambda *_: Ran(500, passed=fails != "health"))
        again = [file_of(ONE, name) for name in ("a", "b")]
        disk.api = [goal_of(3, *again, rollback_to=1, hook="reload", health=soaking(80))]
        ended = _killed_at(disk, kills, monkeypatch, HostReleases._round)
        with disk.life() as host:
            host.check_ports = frozenset({80})
            host._round()
            host._soak()
            host._round()
            assert disk.contents() == [ONE, ONE], kills
            said = disk.told[-1][0]
            assert (said["revision"], said["state"], said["placed"]) == (3, "failed", 3), kills
            assert said["reason"].startswith(f"the {'hook' if fails == 'hook' else 'health check'} failed")
            assert sha256(TWO) in host._contents()
        kills += 1
    assert kills > 5


def test_killed_agent_keeps_the_former_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that changes the disk or the journal: going back needs no transfer."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        for number, content in ((1, ONE), (2, TWO)):
            disk.api = [goal_of(number, file_of(content, "a"), file_of(content, "b"))]
            if number == 1:
                with disk.life() as host:
                    for name in ("a", "b"):
                        disk.bring(host, content, name)
                    host._round()
        ended = _killed_at(disk, kills, monkeypatch, HostReleases._round, (TWO,))
        with disk.life() as host:
            host._round()
            # What the loop does after each round.
            host._soak()
            disk.api = [goal_of(3, file_of(ONE, "a"), file_of(ONE, "b"))]
            host._round()
        assert disk.contents() == [ONE, ONE], kills
        kills += 1
    assert kills > 10


def test_error_in_one_release_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, real = Disk(tmp_path), HostReleases._has
    disk.api = [goal_of(1, file_of(ONE, "a")), goal_of(1, file_of(TWO, "b")) | {"name": "other"}]

    def fails(host: HostReleases, file: Any, revision: int) -> bool:
        if file["file_name"] == "a":
            raise AssertionError("never thought of")
        return real(host, file, revision)

    monkeypatch.setattr(HostReleases, "_has", fails)
    with disk.life() as host:
        disk.bring(host, TWO, "b")
        host._round()
        assert disk.contents() == [None, TWO]
    said = {one["name"]: (one["state"], one.get("reason")) for one in disk.told[-1]}
    assert said == {"app": ("failed", "AssertionError: never thought of"), "other": ("current", None)}


# --- when it asks


class Turns(threading.Event):
    """Each wait of the loop takes no time and is noted; the clock moves by it. `limit`: how many turns there are."""

    def __init__(self, host: HostReleases, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        super().__init__()
        self.now, self.left, self.host = time.monotonic(), limit, host
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        if self.left < 0:
            self.host.stopping.set()
        found = self.is_set()
        if not found:
            self.now += timeout or 0.0
        return found


def test_report_that_got_no_answer_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would make the host ask: it has its goal."""
    disk, calls = Disk(tmp_path), [0]
    disk.api = [goal_of(1, file_of(ONE, "a"))]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        real = host.client.agents.ask

        def ask(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] == 2:
                raise TidegateError("no answer")
            return real(*args)

        monkeypatch.setattr(host.client.agents, "ask", ask)
        host._wake = Turns(host, monkeypatch, 6)
        host.trigger()
        host.run()
    assert [[one["state"] for one in said] for said in disk.told] == [[], ["current"]]


def test_agent_killed_before_its_report_reports_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"))]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._note_goals(disk.api)
        host._converge(disk.api[0])
    assert disk.told == []
    with disk.life() as host:
        host._wake = Turns(host, monkeypatch, 5)
        host.run()
    assert [[one["state"] for one in said] for said in disk.told] == [["current"]]


def test_wish_to_ask_outlives_a_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, calls = Disk(tmp_path), [0]
    with disk.life() as host:

        def ask(*_args: Any) -> Any:
            calls[0] += 1
            if calls[0] == 1:
                raise TidegateError("no answer")
            return []

        monkeypatch.setattr(host.client.agents, "ask", ask)
        host._wake = Turns(host, monkeypatch, 5)
        host.trigger()
        host.run()
    assert calls == [2]


def test_fleet_that_is_told_at_once_asks_over_the_named_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    here, really = threading.current_thread(), random.uniform

    def draw(low: float, high: float) -> float:
        if threading.current_thread() is not here:  # a thread of another test that still ends
            return really(low, high)
        drawn.append((low, high))
        return 0.2

    monkeypatch.setattr(random, "uniform", draw)
    with Disk(tmp_path).life() as host:
        host.trigger(30.0)
        assert not host._wake.is_set()
        assert host._wake.wait(60)
    assert drawn == [(0, 30.0)]


def test_goal_that_cannot_be_reached_is_asked_for_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a release that is paused for days. Another one soaks meanwhile, and is looked at every five seconds."""
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
    disk = Disk(tmp_path)
    held = goal_of(2, file_of(TWO, "b"), hold=True) | {"name": "held"}
    disk.api = [goal_of(1, file_of(ONE, "a"), health=soaking(80) | {"soak_s": 86400}), held]
    with disk.life() as host:
        host.check_ports = frozenset({80})
        disk.bring(host, ONE, "a")
        host._round()
        before = len(disk.told)
        turns = host._wake = Turns(host, monkeypatch, 2000)
        began = turns.now
        host.run()
        asked, hours = len(disk.told) - before, (turns.now - began) / 3600
    assert hours > 2.7
    assert 5 < asked < 10


def test_journal_of_a_newer_agent_is_read(tmp_path: Path) -> None:
    """An update that was taken back leaves it."""
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"))]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._round()
        text = host._states["app"].to_json()
        host.delivery.journal.save_release("app", text[:-1] + ', "new_field": 1}')
    with disk.life() as host:
        assert host._states["app"].active == 1


def test_host_of_a_deleted_release_beside_two_hundred_others_asks(tmp_path: Path) -> None:
    """The API takes two hundred reports; the answer lets the host forget the release that is gone."""
    disk = Disk(tmp_path)
    with disk.life() as host:
        for number in range(201):
            host._save(State(f"r-{number:03d}", active=1))
        disk.api = [goal_of(1, file_of(ONE, "a")) | {"name": f"r-{number:03d}"} for number in range(200)]
        host._round()
        assert len(host._states) == 200
    assert max(map(len, disk.told)) == 200


def test_path_of_another_release_is_not_taken(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    first, second = goal_of(1, file_of(ONE, "a")), goal_of(1, file_of(TWO, "a")) | {"name": "other"}
    disk.api = [first, second]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        disk.bring(host, TWO, "a")
        host._round()
        assert disk.contents()[0] == ONE
        said = {one["name"]: one for one in disk.told[-1]}
        assert said["app"]["state"] == "current"
        assert said["other"]["state"] == "failed"
        assert said["other"]["reason"].startswith("the release app has /data/a on this host")


def test_path_that_another_release_gives_up_is_waited_for(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"))]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._round()
        second = goal_of(1, file_of(TWO, "a")) | {"name": "another"}
        disk.api = [second, goal_of(2, file_of(THREE, "b"))]
        host._round()
        disk.bring(host, TWO, "a")
        host._round()
        assert disk.contents() == [ONE, None]
        assert [one["state"] for one in disk.told[-1]] == ["current"]
        disk.bring(host, THREE, "b")
        host._round()
        assert disk.contents() == [TWO, THREE]


def test_failed_transfer_counts_for_its_own_release_and_revision(tmp_path: Path) -> None:
    """Another release, or a later revision, with the same content is not refused for it."""
    disk = Disk(tmp_path)
    other = goal_of(1, file_of(ONE, "b")) | {"name": "other"}
    full = OSError(28, "No space left on device")
    disk.api = [goal_of(1, file_of(ONE, "a")), other]
    with disk.life() as host:
        for _ in range(2):
            host.delivered({"signature": sha256(ONE), "release": "other"}, full)  # type: ignore[typeddict-item]
        host._round()
        assert [(one["name"], one["state"]) for one in disk.told[-1]] == [("other", "failed")]
        host.delivered({"signature": sha256(ONE), "release": "other"}, full)  # type: ignore[typeddict-item]
        disk.api = [goal_of(1, file_of(ONE, "a")), other | {"revision": 2}]
        host._round()
        assert [(one["name"], one["revision"]) for one in disk.told[-1]] == [("other", 1)]


def test_staged_content_that_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.api = [goal_of(1, file_of(ONE, "a"), hold=True)]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        host._round()
        assert disk.told[-1][0]["state"] == "staged"
        ((_, signature),) = host.delivery.journal.kept()
        host.delivery.journal.drop_kept(disk.root / "data", signature)
        assert not host._needs_asking()
        disk.api = [goal_of(1, file_of(ONE, "a"))]
        host._round()
        assert host._needs_asking()
        disk.bring(host, ONE, "a")
        host._round()
        assert disk.contents()[0] == ONE


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


def test_soak_ends_in_time_after_the_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200))
    disk, now = Disk(tmp_path), [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    disk.api = [goal_of(1, file_of(ONE, "a"), health=soaking(80))]
    with disk.life() as host:
        host.check_ports = frozenset({80})
        disk.bring(host, ONE, "a")
        host._round()
        now[0] -= 10 * 86400
        host._soak()
        assert host._states["app"].soaks_until > now[0]
        now[0] += 601
        host._soak()
        assert host._states["app"].soaks_until == 0.0


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
        host._round()
        failed = {"signature": sha256(TWO), "release": "app"}
        host.delivered(failed, OSError(28, "No space left on device"))  # type: ignore[arg-type]
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


# --- hooks and checks


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 500 No\r\n\r\n"], ids=["head", "body"])
def test_check_of_a_page_that_trickles_ends_in_time(begins: bytes) -> None:
    stopping = threading.Event()

    def page(handler: Handler) -> None:
        with contextlib.suppress(OSError):
            handler.wfile.write(begins)
            while not stopping.wait(0.2):
                handler.wfile.write(b".")

    began = idle_clock()
    with serve(page) as port:
        try:
            ran = check_url(urllib3.PoolManager(), f"http://127.0.0.1:{port}/", 1, threading.Event())
        finally:
            stopping.set()
    assert idle_clock() - began < 5
    assert not ran.passed


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
def test_hook_runs_as_the_named_user_and_its_groups() -> None:
    user = pwd.getpwuid(65534)
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        ran = run_hook(Hook(script(Path(made), "h", "id -un; id -G"), user.pw_name), {}, 10)
    name, groups = ran.output.splitlines()
    # Not root's: a file that only root's group may read stays closed.
    assert (name, set(groups.split())) == (
        user.pw_name,
        {str(number) for number in os.getgrouplist(user.pw_name, user.pw_gid)},
    )


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
