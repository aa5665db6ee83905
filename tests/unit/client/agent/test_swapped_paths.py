"""Two releases that want each other's paths: they swap, and a path is held by whoever may still go back to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_disk import Disk, file_of, goal_of
from tests.unit.client.agent.test_releases import killed_at
from tests.unit.client.fakes import sha256
from tidegate_client.agent import releases
from tidegate_client.agent.releases import HostReleases, Ran

ONE, TWO, THREE, FOUR = b"one" * 1000, b"two" * 1000, b"three" * 1000, b"four" * 1000


def goal(name: str, revision: int, content: bytes, path: str, **more: Any) -> dict[str, Any]:
    return goal_of(revision, file_of(content, path), **more) | {"name": name}


def apart(disk: Disk) -> None:
    """`app` has `a` and `web` has `b`; then the host is down."""
    disk.api = [goal("app", 1, ONE, "a"), goal("web", 1, TWO, "b")]
    with disk.life() as host:
        disk.bring(host, ONE, "a")
        disk.bring(host, TWO, "b")
        host._round()
    assert disk.contents() == [ONE, TWO]


def swapped(disk: Disk, **more: Any) -> None:
    """While it was down, both gave up their paths, and took each other's."""
    disk.api = [goal("app", 3, THREE, "b", **more), goal("web", 3, FOUR, "a")]


def bring_both(disk: Disk, host: HostReleases) -> None:
    disk.bring(host, THREE, "b")
    disk.bring(host, FOUR, "a")


def states(disk: Disk) -> dict[str, tuple[int, str]]:
    return {one["name"]: (one["revision"], one["state"]) for one in disk.told[-1]}


def test_releases_that_swap_their_paths_do_not_wait_for_each_other(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    apart(disk)
    swapped(disk)
    with disk.life() as host:
        bring_both(disk, host)
        host._round()
        assert disk.contents() == [FOUR, THREE]
        assert states(disk) == {"app": (3, "current"), "web": (3, "current")}
        host._look_for_drift()
        assert all(not state.drift for state in host._states.values())


def test_three_releases_in_a_ring_all_move(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    names, contents = ("a", "b", "c"), (ONE, TWO, THREE)
    disk.api = [goal(f"r{name}", 1, content, name) for name, content in zip(names, contents, strict=True)]
    with disk.life() as host:
        for name, content in zip(names, contents, strict=True):
            disk.bring(host, content, name)
        host._round()
        moved = [*zip(names, contents, ("b", "c", "a"), strict=True)]
        disk.api = [goal(f"r{name}", 2, content, to) for name, content, to in moved]
        for _, content, to in moved:
            disk.bring(host, content, to)
        host._round()
        assert set(states(disk).values()) == {(2, "current")}
    assert [(disk.root / "data" / name).read_bytes() for name in names] == [THREE, ONE, TWO]


@pytest.mark.parametrize("lacks", ["content", "leave"])
def test_nobody_loses_its_file_before_the_other_can_move(tmp_path: Path, lacks: str) -> None:
    """The other release lacks its content, or is on hold: nothing is taken from it."""
    disk = Disk(tmp_path)
    apart(disk)
    swapped(disk)
    disk.api[1]["hold"] = lacks == "leave"
    with disk.life() as host:
        disk.bring(host, THREE, "b")
        if lacks == "leave":
            disk.bring(host, FOUR, "a")
        host._round()
        assert disk.contents() == [ONE, TWO]
        assert host._needs_asking()
        disk.bring(host, FOUR, "a")
        disk.api[1]["hold"] = False
        host._round()
        assert disk.contents() == [FOUR, THREE]


def test_killed_agent_ends_a_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call that changes the disk or the journal: no path is empty, and after a restart both are swapped."""
    kills, ended = 0, False
    while not ended:
        disk = Disk(tmp_path / str(kills))
        apart(disk)
        swapped(disk)
        with disk.life() as host:
            bring_both(disk, host)
            calls = ("rename", "link", "unlink", "mkdir", "rmdir"), ("save_release", "drop_kept", "keep", "part_closed")
            ended = killed_at(monkeypatch, kills, *calls, host._round)
        assert None not in disk.contents(), kills
        with disk.life() as host:
            host._round()
            host._look_for_drift()
            assert all(not state.drift for state in host._states.values()), kills
        assert disk.contents() == [FOUR, THREE], kills
        assert states(disk) == {"app": (3, "current"), "web": (3, "current")}, kills
        kills += 1
    assert kills > 10


def test_first_of_a_swap_that_fails_gives_the_path_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took is in place again, and the other release, whose new path it keeps, is refused."""
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(500, passed=False))
    disk = Disk(tmp_path)
    apart(disk)
    swapped(disk, health={"url": "http://127.0.0.1:80/", "timeout_s": 1, "soak_s": 0})
    with disk.life() as host:
        host.check_ports = frozenset({80})
        bring_both(disk, host)
        host._round()
        assert disk.contents() == [ONE, TWO]
        assert states(disk) == {"app": (3, "failed"), "web": (3, "failed")}
        assert "the release app still has /data/a here" in host._states["web"].reason  # type: ignore[operator]
        # Each goes on with its next revision, at its old path.
        disk.api = [goal("app", 4, THREE, "a"), goal("web", 4, FOUR, "b")]
        disk.bring(host, THREE, "a")
        disk.bring(host, FOUR, "b")
        host._round()
        assert disk.contents() == [THREE, FOUR]


def test_swap_that_fails_while_it_soaks_takes_nothing_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cannot return to its path, which the other has by now: it says so, and nobody waits for it."""
    well = [True]
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200 if well[0] else 500, passed=well[0]))
    disk = Disk(tmp_path)
    apart(disk)
    check = {"url": "http://127.0.0.1:80/", "timeout_s": 1, "soak_s": 600}
    swapped(disk, health=check)
    with disk.life() as host:
        host.check_ports = frozenset({80})
        bring_both(disk, host)
        host._round()
        assert disk.contents() == [FOUR, THREE], "the other is without a file while the first soaks"
        well[0] = False
        host._soak()
        host._round()
        assert states(disk) == {"app": (3, "failed"), "web": (3, "current")}
        assert disk.contents()[0] == FOUR
        assert "placed" not in next(one for one in disk.told[-1] if one["name"] == "app")
        well[0] = True
        disk.api = [goal("app", 4, ONE, "b", health=check), goal("web", 4, TWO, "a")]
        disk.bring(host, ONE, "b")
        disk.bring(host, TWO, "a")
        host._round()
        assert disk.contents() == [TWO, ONE]


def test_path_is_kept_free_while_a_release_may_go_back_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = [True]
    monkeypatch.setattr(releases, "check_url", lambda *_: Ran(200 if well[0] else 500, passed=well[0]))
    disk = Disk(tmp_path)
    disk.api = [goal("app", 1, ONE, "a")]
    with disk.life() as host:
        host.check_ports = frozenset({80})
        disk.bring(host, ONE, "a")
        host._round()
        check = {"url": "http://127.0.0.1:80/", "timeout_s": 1, "soak_s": 600}
        disk.api = [goal("app", 2, TWO, "b", health=check), goal("web", 1, THREE, "a")]
        disk.bring(host, TWO, "b")
        disk.bring(host, THREE, "a")
        host._round()
        assert disk.contents() == [ONE, TWO]
        well[0] = False
        host._soak()
        host._round()
        assert disk.contents() == [ONE, None]
        assert states(disk) == {"app": (2, "failed"), "web": (1, "failed")}


def test_release_whose_path_was_taken_does_not_list_its_files(tmp_path: Path) -> None:
    """The other release cannot be switched after all, since a directory is in its way."""
    disk = Disk(tmp_path)
    apart(disk)
    swapped(disk)
    disk.api[1]["files"].append(file_of(FOUR, "dir"))
    (disk.root / "data/dir").mkdir()
    with disk.life() as host:
        bring_both(disk, host)
        disk.bring(host, FOUR, "dir")
        host._round()
        assert states(disk) == {"app": (3, "current"), "web": (3, "failed")}
        assert "placed" not in next(one for one in disk.told[-1] if one["name"] == "web")
        assert sha256(THREE) in {file["signature"] for file in host._states["app"].files}
