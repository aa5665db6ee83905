"""What people see: bars on a terminal, lines elsewhere, nothing with --json."""

from __future__ import annotations

import io

import pytest

from tidegate_client.cli.output import Output
from tidegate_client.cli.progress import ByteBar, Live, human_bytes, human_seconds
from tidegate_client.cli.views import Overview, line_of
from tidegate_client.records import Change


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def output(err: io.StringIO, *, as_json: bool = False) -> Output:
    return Output(as_json=as_json, out=io.StringIO(), err=err)


def test_a_terminal_gets_one_line_drawn_over_itself() -> None:
    terminal, now = Terminal(), iter([0.0, 0.0, 0.05, 1.0, 1.0])
    live = Live(output(terminal), now=lambda: next(now))

    for text in ("10 %", "20 %", "30 %"):
        live.show(text)
    live.close()

    assert terminal.getvalue() == "\r\x1b[2K10 %\r\x1b[2K30 %\n"


def test_without_a_terminal_lines_come_seldom_but_changes_always() -> None:
    stream, now = io.StringIO(), iter([0.0, 0.0, 1.0, 2.0, 2.0])
    live = Live(output(stream), now=lambda: next(now))

    live.show("10 %")
    live.show("20 %")
    live.show("done", important=True)
    live.close()

    assert stream.getvalue() == "10 %\ndone\n"


def test_json_is_alone() -> None:
    stream = Terminal()
    bar = ByteBar(output(stream, as_json=True), "f")
    bar(1, 2)
    bar(2, 2)
    bar.close()

    assert stream.getvalue() == ""


def test_an_upload_of_unknown_size_still_shows_how_far_it_is() -> None:
    stream = io.StringIO()

    ByteBar(output(stream), "f")(1_500_000, None)

    assert stream.getvalue().startswith("f  1.5 MB  ")


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
            {"name": "n", "status": "failed", "progress": {"rows": 5}, "failed_reason": "the source lied"},
            "n  5  failed  the source lied",
        ),
        (
            {"type": "scan", "status": "failed", "error": {"code": "x", "detail": "no such host"}},
            "scan  failed  no such host",
        ),
        ({"type": "scan", "status": "queued", "last_wait_reason": "capacity"}, "scan  queued  capacity"),
    ],
)
def test_every_kind_of_record_has_its_line(record: dict[str, object], line: str) -> None:
    assert line_of(record) == line


def test_several_records_are_counted_and_failures_named() -> None:
    stream = io.StringIO()
    overview = Overview(output(stream), 3)

    for record_id, status in (("a", "Running"), ("b", "Success"), ("c", "Failed"), ("a", "Success")):
        overview.show(Change(record_id, {"file_name": record_id, "status": status, "error_msg": "disk full"}))
    overview.close()

    told = stream.getvalue().splitlines()
    assert "c  Failed  disk full" in told
    assert told[-1].endswith("3/3  Failed 1  Success 2")


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (20_971_520, "21.0 MB"), (3e15, "3000.0 TB")])
def test_bytes_for_people(count: float, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(5, "0:05"), (65, "1:05"), (3725, "1:02:05")])
def test_seconds_for_people(seconds: float, shown: str) -> None:
    assert human_seconds(seconds) == shown
