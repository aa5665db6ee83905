"""Uploads in parts: parallel, retried, and resumed by another run."""

from __future__ import annotations

import _thread
import hashlib
import http.server
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from tidegate_client.errors import TransferError
from tidegate_client.uploads import Journal, send_parts

CONTENT = bytes(range(251)) * 4000
PART = 100_000
COUNT = 11


class PartStore(http.server.ThreadingHTTPServer):
    """A fake store for parts. `answers`: statuses of the first PUTs; `refuses_after`: later parts are refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.parts: dict[int, bytes] = {}
        self.puts: list[int] = []
        self.answers: list[int] = []
        self.refuses_after: int | None = None
        self.seconds_a_part = 0.0
        # Ctrl-C in the main thread when that many parts have arrived.
        self.interrupt_at: int | None = None
        self.interrupted = threading.Event()
        self.url_calls: list[list[int]] = []

    def links(self, numbers: list[int]) -> dict[int, str]:
        self.url_calls.append(numbers)
        return {number: f"http://127.0.0.1:{self.server_port}/?partNumber={number}" for number in numbers}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PartStore

    def do_PUT(self) -> None:
        number = int(parse_qs(urlsplit(self.path).query)["partNumber"][0])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        store = self.server
        store.puts.append(number)
        if store.interrupt_at is not None:
            # All parts before it wait for it, however slow the machine is.
            if len(store.puts) == store.interrupt_at:
                _thread.interrupt_main()
                store.interrupted.set()
            store.interrupted.wait(30)
        time.sleep(store.seconds_a_part)
        status = store.answers.pop(0) if store.answers else 200
        if store.refuses_after is not None and len(store.parts) >= store.refuses_after:
            status = 400
        self.send_response(status)
        if status == 200:
            store.parts[number] = body
            self.send_header("ETag", f'"{number}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[PartStore]:
    with PartStore() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "big.bin"
    path.write_bytes(CONTENT)
    return path


def journal_of(source: Path) -> Journal:
    return Journal.for_upload(source, {"file_path": "/a"})


def test_every_part_is_sent_once_and_progress_ends_at_the_size(store: PartStore, source: Path) -> None:
    journal, progress = journal_of(source), []
    journal.begin("f-1", "sha", PART)

    sent = send_parts(
        urllib3.PoolManager(), source, journal, store.links, lambda done, total: progress.append((done, total))
    )

    assert [part["number"] for part in sent] == list(range(1, COUNT + 1))
    assert b"".join(store.parts[number] for number in sorted(store.parts)) == CONTENT
    assert sorted(store.puts) == list(range(1, COUNT + 1))
    assert progress[-1] == (len(CONTENT), len(CONTENT))


def test_another_run_sends_only_what_is_missing(store: PartStore, source: Path) -> None:
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    store.refuses_after = 4
    with pytest.raises(TransferError):
        send_parts(urllib3.PoolManager(), source, journal, store.links)
    stored = set(store.parts)
    with journal.path.open("a") as file:
        file.write('[7, "cut')
    store.refuses_after, store.puts = None, []

    resumed = journal_of(source)
    assert (resumed.file_id, resumed.part_size, set(resumed.etags)) == ("f-1", PART, stored)
    sent = send_parts(urllib3.PoolManager(), source, resumed, store.links)

    assert set(store.puts) == set(range(1, COUNT + 1)) - stored
    assert len(sent) == COUNT
    whole = b"".join(store.parts[number] for number in sorted(store.parts))
    assert hashlib.sha256(whole).digest() == hashlib.sha256(CONTENT).digest()


def test_failed_part_ends_the_upload_while_others_are_sent(store: PartStore, source: Path) -> None:
    """A part that is aborted closes its connection, so the store does not wait for the rest."""
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    store.refuses_after = 0
    began = time.monotonic()
    with pytest.raises(TransferError, match="HTTP 400"):
        send_parts(urllib3.PoolManager(), source, journal, store.links)
    assert time.monotonic() - began < 60, "it took as long as the time-out of a part"


def test_refused_url_is_renewed_and_5xx_is_retried(store: PartStore, source: Path) -> None:
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    store.answers = [403, 503]

    assert len(send_parts(urllib3.PoolManager(), source, journal, store.links)) == COUNT
    assert [len(numbers) for numbers in store.url_calls] == [COUNT, 1]


def test_changed_file_has_another_journal(source: Path) -> None:
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    assert journal_of(source).file_id == "f-1"

    source.write_bytes(CONTENT + b"more")

    assert journal_of(source).file_id == ""


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where these tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_upload_before_the_other_parts(store: PartStore, source: Path) -> None:
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    store.seconds_a_part, store.interrupt_at = 1.0, 4

    with pytest.raises(KeyboardInterrupt):
        send_parts(urllib3.PoolManager(), source, journal, store.links)

    assert len(store.puts) < COUNT, "the other parts of the group are not sent"


def test_incomplete_journal_line_does_not_corrupt_the_next(source: Path) -> None:
    journal = journal_of(source)
    journal.begin("f-1", "sha", PART)
    journal.sent(1, "one")
    with journal.path.open("a") as file:
        file.write('[2, "tw')
    journal_of(source).sent(3, "three")

    assert journal_of(source).etags == {1: "one", 3: "three"}
