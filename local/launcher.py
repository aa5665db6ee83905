"""Runs MiniStack with patches for differences from AWS that matter here. Started by emulator.py.

Every patch names the difference, and can be removed when MiniStack no longer has it."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from local.index_order import IndexOrder
from local.large_objects import LargeObjects, streamed
from local.place import API_ID, DEFAULT_PORT, SHORT_PATH
from local.shared_layers import SharedLayers

Result = dict[str, Any]
Serve = Callable[..., Coroutine[Any, Any, None]]

# AWS authorises a batch call like the single call; MiniStack checks an action that does not exist in IAM.
BATCH_ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "sns:PublishBatch": "sns:Publish",
}
# Processes of functions that start at the same time.
STARTS_PER_CORE = 2
# How long a function may still run after SIGTERM.
GRACE_SECONDS = 0.5
EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)")


def class_name(log: str) -> str | None:
    """Returns the class name of the exception in the last traceback of a log; None if there is none."""
    _, found, traceback = log.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    for line in traceback.splitlines()[1:]:
        if (match := EXCEPTION_LINE.match(line)) and not line.startswith("During handling"):
            return match.group(1)
    return None


def name_errors(execute: Callable[..., Result]) -> Callable[..., Result]:
    """Names an error by its exception class, as Step Functions on AWS does.

    MiniStack names all errors Runtime.HandlerError."""

    def executed(*args: Any, **kwargs: Any) -> Result:
        result = execute(*args, **kwargs)
        body = result.get("body")
        if result.get("error") and isinstance(body, dict) and body.get("errorType") == "Runtime.HandlerError":
            body["errorType"] = class_name(str(result.get("log") or "")) or body["errorType"]
        return result

    return executed


def single_actions(extract: Callable[..., str | None]) -> Callable[..., str | None]:
    """Authorises batch calls of SQS and SNS like the single calls, as AWS does."""

    def extracted(*args: Any, **kwargs: Any) -> str | None:
        action = extract(*args, **kwargs)
        return BATCH_ACTIONS.get(action, action) if action else action

    return extracted


def bodiless(send_response: Serve) -> Serve:
    """Sends an empty body instead of null.

    A function may answer 204 with the body null, which MiniStack cannot encode."""

    async def sent(send: Any, status: int, headers: Any, body: bytes | str | None, **kwargs: Any) -> None:
        await send_response(send, status, headers, body or b"", **kwargs)

    return sent


def fronted(serve: Serve, api_id: str) -> Serve:
    """Serves the HTTP API at the short path /tidegate, and redirects a browser from `/` to that path.

    Without this, an unsigned `GET /` would list the buckets even with AUTH=true."""

    async def front(scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        is_page_request = scope["type"] == "http" and scope["method"] in {"GET", "HEAD"} and not signed(scope)
        if is_page_request and path in {"/", SHORT_PATH}:
            # The page uses relative URLs, so its own must end with a slash.
            location = SHORT_PATH.encode() + b"/"
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})
            return
        if path == SHORT_PATH or path.startswith(SHORT_PATH + "/"):
            stage = f"/_aws/execute-api/{api_id}/$default"
            raw = scope.get("raw_path") or path.encode()
            scope = {
                **scope,
                "path": stage + path.removeprefix(SHORT_PATH),
                "raw_path": stage.encode() + raw.removeprefix(SHORT_PATH.encode()),
            }
        await serve(scope, receive, send)

    return front


def signed(scope: dict[str, Any]) -> bool:
    """Returns whether a request has an AWS signature."""
    return b"X-Amz-Signature" in scope["query_string"] or any(name == b"authorization" for name, _ in scope["headers"])


def keep_queue_names(sqs: Any) -> None:
    """Fixes the port in queue URLs. Otherwise MiniStack would not find a queue after a start on another port."""
    sqs.DEFAULT_PORT = str(DEFAULT_PORT)
    sqs._CANONICAL_NETLOC = f"{sqs.DEFAULT_HOST}:{DEFAULT_PORT}"


def gathering(
    receive: Callable[[str, int], list[Result]], window_of: Callable[[str], float], wake: Callable[[], None]
) -> Callable[[str, int], list[Result]]:
    """Collects a batch for MaximumBatchingWindowInSeconds, as AWS does.

    Without this, MiniStack would pass on each message alone."""
    gathered: dict[str, tuple[float | None, list[Result]]] = {}

    def received(queue_url: str, most: int) -> list[Result]:
        window = window_of(queue_url)
        if not window:
            return receive(queue_url, most)
        opened, batch = gathered.pop(queue_url, (None, []))
        while len(batch) < most and (more := receive(queue_url, most - len(batch))):
            batch += more
        if not batch or len(batch) >= most:
            return batch
        if opened is None:
            opened = time.monotonic()
            timer = threading.Timer(window, wake)
            timer.daemon = True
            timer.start()
        if time.monotonic() >= opened + window:
            return batch
        gathered[queue_url] = opened, batch
        return []

    return received


def batching_window(mappings: Iterable[tuple[str, str, Result]], queue_url: str) -> float:
    queue = queue_url.rpartition("/")[2]
    windows = (
        float(mapping.get("MaximumBatchingWindowInSeconds") or 0)
        for _, _, mapping in mappings
        if str(mapping.get("EventSourceArn")).rpartition(":")[2] == queue
    )
    return max(windows, default=0)


def processes_per_core() -> float:
    """Returns how many processes are ready to run for each core of this machine; at least 1."""
    try:
        wanting = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        wanting = round(os.getloadavg()[0])
    # This process is one of them.
    return max(1.0, (wanting - 1) / (os.cpu_count() or 1))


# Functions that answer callers. They get at least a minute, because callers wait that long.
ANSWERING = re.compile(r"-(?:Api|Submit)Function-")
ANSWERING_SECONDS = 60


class PatientConfig(dict[str, Any]):
    """The configuration of a function, with a time-out that grows with the load of the machine.

    On AWS, a function has a processor of its own. Here, a hundred functions may share two processors. A function that
    is killed at its time-out would begin again with all its imports, and a function that is called often would never
    finish."""

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        if key != "Timeout" or not value:
            return value
        least = ANSWERING_SECONDS if ANSWERING.search(str(super().get("FunctionName"))) else 0
        return max(least, math.ceil(value * processes_per_core()))


def patient(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of MiniStack's worker, so that the worker's configuration is a `PatientConfig`."""

    def made(worker: Any, *args: Any, **kwargs: Any) -> None:
        init(worker, *args, **kwargs)
        worker.config = PatientConfig(worker.config)

    return made


class Idle(Exception):
    """Another process of the function has become idle."""

    def __init__(self, worker: Any) -> None:
        super().__init__()
        self.worker = worker


def in_turn(
    spawn: Callable[..., None], idle: Callable[[Any], Any], starting: threading.Semaphore
) -> Callable[..., None]:
    """Starts only a few processes at the same time.

    Starts no process if another process of the same function has become idle meanwhile. On AWS, each process has a
    processor of its own. Here, fifty processes that start at once take a minute each. Callers that wait for a process
    ask again, and each repetition starts one more."""

    def spawned(worker: Any) -> None:
        with starting:
            if (other := idle(worker)) is not None:
                raise Idle(other)
            spawn(worker)

    return spawned


def idle_one(runtime: Any) -> Callable[[Any], Any]:
    """Finds an idle process of the same function, and leases it."""

    def found(worker: Any) -> Any:
        with runtime._lock:
            for pool in runtime._workers.values():
                for other in pool if worker in pool else ():
                    if not other.in_use and other._proc is not None and other._proc.poll() is None:
                        other.in_use = True
                        return other
        return None

    return found


def alone(invoke: Callable[..., Result], release: Callable[[Any], None]) -> Callable[..., Result]:
    """Fails only one invocation if its process dies while it starts, as AWS does.

    MiniStack would also end all other processes of the function, and the invocations in them would fail too."""

    def invoked(worker: Any, *args: Any, **kwargs: Any) -> Result:
        try:
            return invoke(worker, *args, **kwargs)
        except Idle as found:
            try:
                return invoked(found.worker, *args, **kwargs)
            finally:
                release(found.worker)
        except Exception as error:
            process, worker._proc = worker._proc, None
            if process is not None:
                process.kill()
                process.wait()
            return {"status": "error", "error": str(error), "cold_start": True, "log": ""}

    return invoked


def change_workers(worker: Any, layers: SharedLayers, runtime: Any, starts: int) -> None:
    """Applies the patches to `worker`, MiniStack's class of Python and Node.js processes.

    `runtime` has the pools of these processes. `starts`: how many processes may start at the same time."""
    worker.__init__ = patient(worker.__init__)
    layers.install(worker)
    worker._spawn = in_turn(worker._spawn, idle_one(runtime), threading.Semaphore(starts))
    worker.invoke = alone(worker.invoke, runtime.release_worker)


def end_at_once() -> None:
    """Kills the emulator and its functions, which share a process group.

    Otherwise, the functions would wait for work for 20 s more."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def prompt(serve: Serve, end_functions: Callable[[], None]) -> Serve:
    """Stops within seconds of SIGTERM: ends functions that still run, saves the state, ends the process.

    MiniStack would first wait for every running function, which takes 20 s for an idle agent. A function that waits for
    an answer of the stopped emulator takes even longer. Meanwhile, the emulator would be killed before it has saved its
    state."""

    def stop() -> None:
        last = threading.Timer(GRACE_SECONDS, end_functions)
        last.daemon = True
        last.start()
        # The server stops at this signal as well, and its own handler is still there.
        os.kill(os.getpid(), signal.SIGINT)

    async def served(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            # The server has set its own handlers before it starts the application.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        await serve(scope, receive, send)
        if scope["type"] == "lifespan":
            last = threading.Timer(1, end_at_once)
            last.daemon = True
            last.start()

    return served


def stop_with(parent: int) -> None:
    """Stops the emulator when its parent process is gone. The state of the emulator is saved."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    from ministack import app
    from ministack.core import iam_actions, lambda_runtime
    from ministack.services import dynamodb, lambda_svc, s3, sqs

    lambda_svc._execute_function_warm = name_errors(lambda_svc._execute_function_warm)
    iam_actions.extract_iam_action = single_actions(iam_actions.extract_iam_action)
    app._send_response = streamed(bodiless(app._send_response))
    LargeObjects(s3).install()
    IndexOrder(dynamodb).install()
    layers = Path(tempfile.gettempdir()) / "layers"
    shared = SharedLayers(layers, lambda_svc._resolve_layer_zip)
    change_workers(lambda_runtime.Worker, shared, lambda_runtime, STARTS_PER_CORE * (os.cpu_count() or 1))
    app.app = prompt(fronted(app.app, API_ID), lambda_runtime.reset)
    keep_queue_names(sqs)
    sqs._receive_messages_for_esm = gathering(
        sqs._receive_messages_for_esm,
        lambda queue_url: batching_window(lambda_svc._iter_all_esms(), queue_url),
        lambda_svc._esm_wake.set,
    )
    stop_with(os.getppid())
    app.main()


if __name__ == "__main__":
    main()
