from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ministack.core import lambda_runtime
from ministack.services import lambda_svc

from local import launcher
from local.launcher import batching_window, class_name, fronted, gathering, name_errors, single_actions
from local.shared_layers import SharedLayers
from tests.support.patience import until
from tests.unit.local.test_shared_layers import zipped

TRACEBACK = """{"level": "INFO", "message": "a line of the function's own"}
Traceback (most recent call last):
  File "/var/task/app.py", line 9, in handler
    raise JobClosed("too late")
tidegate.errors.JobClosed: too late
Wait: a second line of the message
"""


def test_error_gets_its_class_name_back() -> None:
    failed = {
        "error": True,
        "body": {"errorType": "Runtime.HandlerError", "errorMessage": "too late"},
        "log": TRACEBACK,
    }
    assert name_errors(lambda: failed)()["body"]["errorType"] == "JobClosed"


def test_of_a_chain_the_last_exception_counts() -> None:
    log = "Traceback (most recent call last):\n  x\nKeyError: 1\n\nDuring handling of the above exception:\n\n"
    assert class_name(log + "Traceback (most recent call last):\n  y\na.b.NotReady\n") == "NotReady"


@pytest.mark.parametrize("log", ["", "no traceback here"])
def test_without_a_traceback_the_error_stays_as_it_is(log: str) -> None:
    assert class_name(log) is None


def test_batch_call_needs_the_right_of_the_single_one() -> None:
    assert single_actions(lambda: "sqs:SendMessageBatch")() == "sqs:SendMessage"
    assert single_actions(lambda: "s3:GetObject")() == "s3:GetObject"
    assert single_actions(lambda: None)() is None


def served(path: str, headers: list[tuple[bytes, bytes]] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    seen: dict[str, Any] = {}
    sent: list[dict[str, Any]] = []

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.update(scope)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers or [],
    }
    asyncio.run(fronted(inner, "71de9a7e")(scope, None, send))
    return seen, sent


def test_api_is_served_at_a_short_address() -> None:
    seen, _ = served("/tidegate/v1/files")
    assert seen["path"] == "/_aws/execute-api/71de9a7e/$default/v1/files"
    assert seen["raw_path"] == b"/_aws/execute-api/71de9a7e/$default/v1/files"


def test_bucket_whose_name_begins_alike_is_left_alone() -> None:
    assert served("/tidegate-artifacts/key")[0]["path"] == "/tidegate-artifacts/key"


def test_unsigned_get_of_the_root_redirects_to_the_console() -> None:
    seen, sent = served("/")
    assert not seen
    assert sent[0]["status"] == 307


def test_signed_get_of_the_root_reaches_s3() -> None:
    assert served("/", [(b"authorization", b"AWS4-HMAC-SHA256 ...")])[0]["path"] == "/"


class Mapped:
    """A queue as an event source mapping polls it: ten messages at a time."""

    def __init__(self, window: float) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.woken = 0
        self.receive = gathering(self._receive, lambda _: window, self._wake)

    def _receive(self, _: str, most: int) -> list[dict[str, Any]]:
        taken, self.waiting = self.waiting[: min(most, 10)], self.waiting[min(most, 10) :]
        return taken

    def _wake(self) -> None:
        self.woken += 1

    def arrives(self, number: int) -> None:
        self.waiting += [{"id": f"m{len(self.waiting)}"} for _ in range(number)]


def test_batch_is_collected_for_its_window_then_the_poller_wakes() -> None:
    queue = Mapped(window=0.1)
    queue.arrives(3)
    assert queue.receive("q", 1000) == []
    queue.arrives(2)
    assert queue.receive("q", 1000) == []

    time.sleep(0.15)

    assert queue.woken == 1
    assert len(queue.receive("q", 1000)) == 5
    assert queue.receive("q", 1000) == []


def test_full_batch_does_not_wait() -> None:
    queue = Mapped(window=60)
    queue.arrives(25)
    assert len(queue.receive("q", 20)) == 20


def test_without_a_window_a_message_goes_at_once() -> None:
    queue = Mapped(window=0)
    queue.arrives(1)
    assert len(queue.receive("q", 10)) == 1


def test_queues_window_is_its_mappings() -> None:
    mappings: list[tuple[str, str, dict[str, Any]]] = [("account", "region", {"EventSourceArn": "arn:…:a"})]
    mappings += [("account", "region", {"EventSourceArn": "arn:…:b", "MaximumBatchingWindowInSeconds": 1})]
    assert [batching_window(mappings, f"http://host/account/{name}") for name in "abc"] == [0, 1, 0]


CONFIG = {
    "FunctionName": "tidegate-ApiFunction-985f4b",
    "FunctionArn": "arn:aws:lambda:us-east-1:000000000000:function:tidegate-ApiFunction-985f4b",
    "Timeout": 29,
}


def test_process_that_dies_while_starting_ends_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Process(lambda_runtime.Worker):  # type: ignore[misc]
        def _spawn(self) -> None:
            raise RuntimeError("Worker process exited immediately")

    launcher.change_workers(Process, SharedLayers(tmp_path, lambda _: None), lambda_runtime, 2)
    monkeypatch.setattr(lambda_runtime, "_worker_class_for", lambda _: Process)
    monkeypatch.setattr(lambda_runtime, "_workers", {})
    monkeypatch.setattr(lambda_svc, "_ensure_reaper_thread", lambda: None)
    busy, _ = lambda_runtime.acquire_worker(CONFIG["FunctionName"], CONFIG, b"zip")

    answer = lambda_svc._execute_function_warm({"config": CONFIG, "code_zip": b"zip"}, {}, "id")

    assert answer["error"]
    assert answer["body"]["errorMessage"] == "Worker process exited immediately"
    (processes,) = lambda_runtime._workers.values()
    assert busy in processes
    assert [process.in_use for process in processes] == [True, False]


def test_process_with_layers_gets_more_time_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[int] = []

    class Process:
        def __init__(self, config: dict[str, Any]) -> None:
            self.config = config

        def _spawn(self) -> None:
            found.append(int(self.config.get("Timeout", 0)))

        def invoke(self) -> None:
            """Answers nothing."""

    launcher.change_workers(Process, SharedLayers(tmp_path, lambda layer: zipped(core="x = 1")), lambda_runtime, 2)
    monkeypatch.setattr(launcher, "processes_per_core", lambda: 3.0)
    process = Process(CONFIG | {"Layers": ["core"]})

    process._spawn()
    monkeypatch.setattr(launcher, "processes_per_core", lambda: 1.0)
    process._spawn()

    assert found == [87, 60]


class Starting(lambda_runtime.Worker):  # type: ignore[misc]
    """Starts when it may, and answers at once."""

    _proc: Any
    most = now = 0
    may_start = threading.Event()
    lock = threading.Lock()

    def _spawn(self) -> None:
        with self.lock:
            Starting.now += 1
            Starting.most = max(Starting.most, Starting.now)
        assert self.may_start.wait(60)
        with self.lock:
            Starting.now -= 1
        self._proc = SimpleNamespace(poll=lambda: None)

    def invoke(self, event: Any, request_id: str, **_: Any) -> dict[str, Any]:
        if self._proc is None:
            self._spawn()
        return {"status": "ok", "result": id(self)}


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Starting]:
    class Process(Starting):
        pass

    launcher.change_workers(Process, SharedLayers(tmp_path, lambda _: None), lambda_runtime, 2)
    monkeypatch.setattr(lambda_runtime, "_worker_class_for", lambda _: Process)
    monkeypatch.setattr(lambda_runtime, "_workers", {})
    monkeypatch.setattr(lambda_svc, "_ensure_reaper_thread", lambda: None)
    return Process


def call(number: int) -> Any:
    return lambda_svc._execute_function_warm({"config": CONFIG, "code_zip": b"zip"}, {}, str(number))["body"]


def test_processes_start_a_few_at_a_time(starting: type[Starting]) -> None:
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(call, number) for number in range(12)]
        until(lambda: Starting.now == 2)
        Starting.may_start.set()
        used = {answer.result(60) for answer in answers}

    assert Starting.most == 2
    (processes,) = lambda_runtime._workers.values()
    assert used == {id(process) for process in processes if process._proc}
    assert not any(process.in_use for process in processes)


def test_process_that_became_idle_is_used_and_none_is_started(starting: type[Starting]) -> None:
    first, _ = lambda_runtime.acquire_worker(CONFIG["FunctionName"], CONFIG, b"zip")
    second, _ = lambda_runtime.acquire_worker(CONFIG["FunctionName"], CONFIG, b"zip")
    second._proc = SimpleNamespace(poll=lambda: None)
    for process in (first, second):
        lambda_runtime.release_worker(process)

    assert call(1) == id(second)

    assert first._proc is None
    assert (first.in_use, second.in_use) == (False, False)
