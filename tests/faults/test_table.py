"""The table of the sweep: a stopped sweep continues with the missing points."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import __main__ as command
from tests.faults.modes import LATE, PARTIAL
from tests.faults.scenarios import enrolment
from tests.faults.sweep import Scenario
from tests.faults.table import Row, Table
from tests.faults.world import World


def lists_files(world: World) -> None:
    """Two invocations: the authorizer's and the API's."""
    project = world.new_project()
    assert world.ask("GET", "/v1/files", key=project.key).status == 200


SMALL = Scenario("small", lists_files)


def test_sweep_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, played = tmp_path / "faults.jsonl", []

    def survives(scenario: Scenario, mode: str, at: int, total: int) -> str:
        played.append(at)
        return ""

    monkeypatch.setattr(command, "_play", survives)
    command.sweep_pair(SMALL, "frozen", Table(path))
    everything = list(played)
    assert len(everything) > 1
    path.write_text(path.read_text().splitlines()[0] + "\n")

    command.sweep_pair(SMALL, "frozen", Table(path))
    command.sweep_pair(SMALL, "frozen", Table(path))

    assert played == everything + everything[1:]
    assert Table(path).shown(["small"], ["frozen"]).endswith(f"| small | {len(everything)}/{len(everything)} |")


def test_point_with_a_fault_is_repeated_with_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, faults = tmp_path / "faults.jsonl", {1: "lost"}
    monkeypatch.setattr(command, "_play", lambda scenario, mode, at, total: faults.get(at, ""))
    assert command.sweep_pair(SMALL, "frozen", Table(path)) == 1
    assert [row.fault for row in Table(path).faults()] == ["lost"]
    faults.clear()

    assert command.sweep_pair(SMALL, "frozen", Table(path)) == 0
    assert Table(path).faults()
    assert command.sweep_pair(SMALL, "frozen", Table(path), again=True) == 0
    assert not Table(path).faults()


def test_fault_is_found_and_stored(tmp_path: Path) -> None:
    def breaks(world: World) -> None:
        project = world.new_project()
        answer = world.try_ask("GET", "/v1/files", key=project.key)
        assert answer, "no answer came"

    table = Table(tmp_path / "faults.jsonl")

    assert command.sweep_pair(Scenario("breaks", breaks), "crowded", table) == len(table.rows) > 0
    assert all("no answer came" in row.fault for row in table.faults())


def test_table_marks_modes_without_points_and_unfinished_ones(tmp_path: Path) -> None:
    table = Table(tmp_path / "faults.jsonl")
    command.sweep_pair(SMALL, PARTIAL, table)
    command.sweep_pair(enrolment.SCENARIO, LATE, table)
    table.add(Row("small", "lost", 3, 9))

    assert table.shown(["small"], [PARTIAL, "lost", "before"]).splitlines()[-1] == "| small | – | 1/1 (of 9) |  |"
    assert "–" in table.shown([enrolment.SCENARIO.name], [LATE])
