"""Progress output: a bar on a terminal, lines elsewhere, nothing with --json."""

from __future__ import annotations

import io
import json

import pytest

from tidegate_client.cli.output import ByteBar, Live, Output, Speed, human_bytes, human_seconds
from tidegate_client.cli.views import Overview, line_of
from tidegate_client.errors import ApiError
from tidegate_client.records import Change


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def output(err: io.StringIO, *, as_json: bool = False) -> Output:
    return Output(as_json=as_json, out=io.StringIO(), err=err)


def test_terminal_gets_one_redrawn_line() -> None:
    terminal, now = Terminal(), iter([0.0, 0.0, 0.05, 1.0, 1.0])
    live = Live(output(terminal), now=lambda: next(now))

    for text in ("10 %", "20 %", "30 %"):
        live.show(text)
    live.close()

    assert terminal.getvalue() == "\r\x1b[2K10 %\r\x1b[2K30 %\n"


def test_without_a_terminal_only_changes_print_at_once() -> None:
    stream, now = io.StringIO(), iter([0.0, 0.0, 1.0, 2.0, 2.0])
    live = Live(output(stream), now=lambda: next(now))

    live.show("10 %")
    live.show("20 %")
    live.show("done", important=True)
    live.close()

    assert stream.getvalue() == "10 %\ndone\n"


def test_json_output_has_no_progress_bar() -> None:
    stream = Terminal()
    bar = ByteBar(output(stream, as_json=True), "f")
    bar(1, 2)
    bar(2, 2)
    bar.close()

    assert stream.getvalue() == ""


def test_progress_of_unknown_size_shows_the_bytes() -> None:
    stream = io.StringIO()

    ByteBar(output(stream), "f")(1_500_000, None)

    assert stream.getvalue() == "f  1.5 MB\n"


def test_time_left_follows_the_speed_of_this_run() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = ByteBar(output(stream), "f", now=lambda: now[0])

    # An earlier run brought the first 60 MB.
    for done in (60_000_000, 70_000_000, 80_000_000):
        bar(done, 100_000_000)
        now[0] += 10

    assert stream.getvalue().splitlines()[-1].endswith("80 %  80.0 MB of 100.0 MB  1.0 MB/s  0:20 left")


def test_ingest_shows_bytes_speed_and_time_left() -> None:
    running = {"type": "download", "status": "running"}
    at_first = running | {"progress": {"bytes": 1_000_000, "total": 5_000_000}}
    speed = Speed()
    speed.at(0.0, 1_000_000)

    line = line_of(running | {"progress": {"bytes": 3_000_000, "total": 5_000_000}}, 2.0, speed.at(2.0, 3_000_000))

    assert line_of(at_first) == "download  █████░░░░░░░░░░░░░░░░░░░  20 %  1.0 MB of 5.0 MB  running"
    assert line == "download  ██████████████░░░░░░░░░░  60 %  3.0 MB of 5.0 MB  1.0 MB/s  0:02 left  running  0:02"


def test_speed_is_that_of_the_last_half_minute() -> None:
    speed = Speed()
    for second in range(100):
        known = speed.at(float(second), second * 1000 if second < 50 else 50_000 + (second - 50) * 10)

    assert known == pytest.approx(10)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {
                "file_name": "f",
                "status": "Running",
                "counts": {"total": 4, "success": 2, "failed": 0, "downloading": 2},
            },
            "f  ████████████░░░░░░░░░░░░ 2/4  success 2  downloading 2  Running",
        ),
        (
            {
                "name": "n",
                "status": "running",
                "progress": {"processed": 50, "total": 200, "rate_now": 10, "errors": 1},
            },
            "n  ██████░░░░░░░░░░░░░░░░░░  25 %  50/200  10/s  0:15 left  errors 1  running",
        ),
        (
            {"name": "n", "status": "failed", "progress": {"rows": 5}, "failed_reason": "the source sent no rows"},
            "n  5  failed  the source sent no rows",
        ),
        (
            {"type": "scan", "status": "failed", "error": {"code": "x", "detail": "no such host"}},
            "scan  failed  no such host",
        ),
        (
            {"type": "extract", "status": "running", "progress": {"files": 3, "bytes": 1500}},
            "extract  3 files  1.5 kB  running",
        ),
        (
            {"type": "scan", "status": "running", "progress": {"new": 12, "queued": 5}},
            "scan  5 of 12 new files queued  running",
        ),
        ({"type": "scan", "status": "queued", "last_wait_reason": "capacity"}, "scan  queued  capacity"),
    ],
)
def test_line_shows_progress_and_reason_of_each_kind(record: dict[str, object], line: str) -> None:
    assert line_of(record) == line


def test_several_records_are_counted_and_failures_named() -> None:
    stream = io.StringIO()
    overview = Overview(output(stream), 3)

    for record_id, status in (("a", "Running"), ("b", "Success"), ("c", "Failed"), ("a", "Success")):
        overview.show(Change(record_id, {"file_name": record_id, "status": status, "error_msg": "disk full"}))
    overview.close()

    lines = stream.getvalue().splitlines()
    assert "c  Failed  disk full" in lines
    assert lines[-1].endswith("3/3  Failed 1  Success 2")


@pytest.mark.parametrize("status", ["paused", "stopping", "created", "waiting_biz"])
def test_paused_or_stopping_record_does_not_count_as_ended(status: str) -> None:
    stream = io.StringIO()
    overview = Overview(output(stream), 2)

    overview.show(Change("a", {"status": status}))

    assert f"0/2  {status} 1" in stream.getvalue()


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (20_971_520, "21.0 MB"), (3e15, "3000.0 TB")])
def test_bytes_are_formatted_with_units(count: float, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(5, "0:05"), (65, "1:05"), (3725, "1:02:05")])
def test_seconds_are_formatted_as_minutes_and_hours(seconds: float, shown: str) -> None:
    assert human_seconds(seconds) == shown


def test_terminal_shows_a_line_for_each_of_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    terminal = Terminal()
    overview = Overview(output(terminal), 2)
    overview.show(Change("a", {"status": "running", "name": "first"}))
    overview.show(Change("b", {"status": "queued", "name": "second"}))
    overview.show(Change("a", {"status": "completed", "name": "first"}))
    overview.close()

    drawings = terminal.getvalue().split("\x1b[1A")
    assert [drawing.count("\n") for drawing in drawings] == [1, 2], "two lines, then the same two again"
    last = drawings[-1].replace("\r\x1b[2K", "")
    assert last == "first  completed\nsecond  queued  0:00\n"


def test_more_records_than_the_terminal_has_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "3")
    terminal = Terminal()
    overview = Overview(output(terminal), 3)
    overview.show(Change("a", {"status": "completed", "name": "first"}))
    assert "1/3  completed 1" in terminal.getvalue()


# What a host, a source or a business may send: it sets a title, clears the screen, hides a line, turns the text round.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2K\rSuccess\u202e\nhost-2  Success"
CONTROLS = ("\x1b", "\x07", "\x9b", "\u202e", "\r")


def test_what_a_host_reports_does_not_control_the_terminal() -> None:
    terminal = Terminal()
    shown, record = output(terminal), {"target_agent_id": "host-1", "file_name": "a", "status": "Failed"}
    overview = Overview(shown, count=1)
    overview.show(Change("task", {**record, "error_msg": HOSTILE}))
    drawn = terminal.getvalue().replace("\r\x1b[2K", "")
    assert [char for char in CONTROLS if char in drawn] == []
    assert "\n" not in drawn


@pytest.mark.parametrize("as_json", [False, True])
def test_no_value_name_or_fault_of_an_answer_controls_the_terminal(*, as_json: bool) -> None:
    out, err = io.StringIO(), io.StringIO()
    shown = Output(as_json=as_json, out=out, err=err)
    nested = {"name": "app", "job_data": {HOSTILE: {"x": 1}}, "rows": [{HOSTILE: HOSTILE}], "deep": [[{"a": HOSTILE}]]}
    shown.record(nested)
    shown.table([nested], ["name", "deep"])
    shown.note(HOSTILE.replace("\n", " "))
    shown.error(ApiError(422, "invalid", "no", errors=[{"loc": ["body", HOSTILE], "msg": HOSTILE}]))
    assert [char for char in CONTROLS if char in out.getvalue() + err.getvalue()] == []
    assert not any(line.startswith("host-2") for line in (out.getvalue() + err.getvalue()).splitlines())
    if as_json:
        assert json.JSONDecoder().raw_decode(out.getvalue())[0] == nested
