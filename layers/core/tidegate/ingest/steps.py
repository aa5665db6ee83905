"""The steps of ingest requests: each invocation does some work of the request's type, and the last one ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.json_input import whole_number
from tidegate.errors import (
    DomainError,
    FetchError,
    FileNotFound,
    Gone,
    LeaseLost,
    NotFound,
    RecordNotFound,
    SignatureMismatch,
    WorkerLost,
    WrongState,
)
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.files.reading import saved_for_request
from tidegate.http.model import Limits
from tidegate.ingest import Ingest, Step, StepOutcome
from tidegate.ingest.archives import extract
from tidegate.ingest.download import discard, download
from tidegate.ingest.fetch import stored_since
from tidegate.ingest.model import MAX_BYTES
from tidegate.ingest.subscriptions import scan_source
from tidegate.queue.model import CANCELLED, COMPLETED, Request, Usage
from tidegate.queue.queue import RunningAttempt, Timing
from tidegate.queue.store import Refused

# --- steps

logger = Logger(service="tidegate", child=True)

# GET shows the bytes and the speed of the last heartbeat.
TIMING = Timing(look=2.0, beat=10.0)


def work(ingest: Ingest, event: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
    """Runs one invocation. Returns the next input of the state machine; its `more` says whether to invoke again."""
    passed = {name: event[name] for name in ("project_id", "request_id", "attempt", "deadline") if name in event}
    attempt = (str(event["project_id"]), str(event["request_id"]), int(event["attempt"]))
    if "failure" in event:
        cause = str(event["failure"])
        logger.error("the function that ran the step died", **passed, cause=cause[:500])
        died = WorkerLost("the function that ran this attempt died before it was done")
        # The cause may have a stack trace and names of AWS resources: only operators see the line's stack.
        ingest.queue.log.write(*attempt, "died", died.detail, error=WorkerLost(cause))
        # Whether this attempt saved some of its work, so that the next one continues there.
        died.progressed = event.get("state") is not None or _saved_some(ingest, attempt)
        return _end(ingest, passed, attempt, error=died)
    began = ingest.clock()
    try:
        outcome, used = _step(ingest, event, attempt, seconds_left)
    except LeaseLost as lost:
        logger.info("the step was stopped", **passed, why=lost.detail)
        ingest.queue.log.write(*attempt, "stopped", lost.detail, since=began)
        _discard(ingest, ingest.queue.get(*attempt[:2]))
        return passed | {"more": False}
    except DomainError as error:
        ingest.queue.log.write(*attempt, "failed", f"{error.detail} ({Usage(*error.used)})", since=began, error=error)
        return _end(ingest, passed, attempt, error=error)
    except Exception as error:
        # The state machine catches the error. Its text may name AWS resources: only operators see the line's stack.
        ingest.queue.log.write(*attempt, "died", "an unexpected error", since=began, error=error)
        raise
    if outcome.state is not None:
        ingest.queue.log.write(*attempt, "goes on", f"the time of one invocation is over ({used})", since=began)
        return passed | {"more": True, "state": dict(outcome.state)}
    ingest.queue.log.write(*attempt, "done", f"{_summary(outcome.result)} ({used})", since=began)
    ended = _end(ingest, passed, attempt, result=outcome.result, extra_writes=outcome.extra_writes, used=used)
    if outcome.after and ended.get("status") == COMPLETED:
        outcome.after()
    return ended


def _step(
    ingest: Ingest, event: Mapping[str, Any], attempt: tuple[str, str, int], seconds_left: float
) -> tuple[StepOutcome, Usage]:
    request = ingest.queue.heartbeat(*attempt)
    ingest.queue.log.write(*attempt, "begun", f"{request.type}, {seconds_left:.0f} s of this invocation left")

    def report(present: Request, progress: Mapping[str, Any]) -> None:
        shown = {"status": present.status, "progress": dict(progress)}
        ingest.topic.publish_progress(present.project_id, present.request_id, shown)

    running = RunningAttempt(ingest.queue, request, TIMING, report, heartbeat_sent=True)
    with running, ingest.runner_time.counted(request.project_id):
        outcome = _STEPS[request.type](ingest, Step(request, running, seconds_left, event.get("state")))
    if outcome.state is not None:
        running.rest()
    return outcome, running.used


def _saved_some(ingest: Ingest, attempt: tuple[str, str, int]) -> bool:
    """Whether this attempt of a download stored parts."""
    request = ingest.queue.get(*attempt[:2])
    if request.type != "download" or request.attempt != attempt[2] or not request.start_time:
        return False
    return stored_since(ingest, request, datetime.fromisoformat(request.start_time).replace(microsecond=0))


def _discard(ingest: Ingest, request: Request) -> None:
    """Deletes what a cancelled request stored.

    Other requests keep their parts, because they may be resumed or retried."""
    if request.status == CANCELLED and request.type in _DISCARDS:
        _DISCARDS[request.type](ingest, request)


def _end(ingest: Ingest, passed: dict[str, Any], attempt: tuple[str, str, int], **outcome: Any) -> dict[str, Any]:
    try:
        ended = ingest.queue.finish(*attempt, **outcome)
    except Refused as refused:
        # Another request stored the same content, or used up the quota. The next attempt decides anew.
        logger.info("the step is repeated by the next attempt", **passed, why=refused.detail)
        ended = ingest.queue.finish(
            *attempt, error=WorkerLost("another request changed the project's content at the same time")
        )
    logger.info("the request ended", **passed, status=ended.status, code=(ended.error or {}).get("code"))
    _discard(ingest, ended)
    return passed | {"more": False, "status": ended.status}


def _summary(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.items())


# --- library steps
# `associate` makes a file of content that is stored already. `check` verifies stored content against its source.


def associate(ingest: Ingest, step: Step) -> StepOutcome:
    """`associate`: makes the file ready with content that the project has. FileNotFound if there is no such content."""
    request = step.request
    file = ingest.files.require(request.project_id, str(request.payload["file_id"]))
    signature = str(file.signature)
    stored = ingest.parts.head(ingest.files.object_of(request.project_id, signature))
    if stored is None or not ingest.files.has_content(request.project_id, signature):
        raise FileNotFound(f"this project has no content with the SHA-256 {signature}: upload or download it first")
    bound = replace(file, state=READY, size=stored.size, error=None)
    result = {"file_id": file.file_id, "signature": signature, "size": stored.size}
    return StepOutcome(result, ingest.files.finish_writes(bound, was=(COMING, FAILED)))


def check_file(ingest: Ingest, step: Step) -> StepOutcome:
    """`check`: reads a ready file's content and verifies its SHA-256.

    If the file has a source, also compares the file with its source."""
    request = step.request
    file = ingest.files.require(request.project_id, str(request.payload["file_id"]))
    if file.state != READY or file.signature is None:
        raise WrongState(f"the file {file.file_id} is {file.state}: check it when it is ready")
    key = ingest.files.object_of(request.project_id, file.signature)
    stored = ingest.parts.head(key)
    if stored is None:
        raise RecordNotFound("the content is gone from the bucket: upload or fetch the file again")
    read = ingest.reader.check(key, stored, step.turn(lambda _: {}), pieces=False)
    if read is None:
        return StepOutcome(state={"goes_on": True})
    if read.signature != file.signature:
        forget_digest(ingest, request)
        raise SignatureMismatch(
            f"the stored content's SHA-256 is {read.signature}, not {file.signature}: upload the file again"
        )
    result = {"file_id": file.file_id, "signature": file.signature, "size": stored.size}
    url = request.payload.get("source_url") or file.source_url
    if url:
        result["source"] = _source(ingest, step, file, str(url))
    return StepOutcome(result, after=lambda: forget_digest(ingest, request))


def forget_digest(ingest: Ingest, request: Request) -> None:
    """Deletes the saved digests of a request that has ended."""
    ingest.reader.forget(saved_for_request(request.project_id, request.request_id))


def _source(ingest: Ingest, step: Step, file: File, url: str) -> str:
    """Compares the file with its source. Returns `same`, `changed`, `gone` or `unknown`.

    It is `unknown` if the source tells neither a size nor an ETag."""
    project_id = step.request.project_id
    name = step.request.payload.get("credentials")
    credential = ingest.credentials.get(project_id, str(name)) if name else None
    allow_private = ingest.projects.get(project_id).allow_private_urls
    if credential:
        credential.require(url, plain_text=allow_private)
    reply = ingest.http.send(
        "HEAD",
        url,
        credential=credential,
        allow_private=allow_private,
        limits=Limits(total=20, max_bytes=MAX_BYTES),
        project_id=project_id,
    )
    try:
        reply.raise_for_status()
    except (NotFound, Gone):
        return "gone"
    except FetchError as error:
        if error.retryable:
            raise
        return "unknown"
    return _compared(file, reply.headers)


def _compared(file: File, headers: Mapping[str, str]) -> str:
    etag, length = headers.get("etag"), headers.get("content-length", "")
    matches = []
    if file.source_etag and etag:
        matches.append(etag.removeprefix("W/") == file.source_etag.removeprefix("W/"))
    if (size := whole_number(length)) is not None:
        matches.append(size == file.size)
    return "unknown" if not matches else "same" if all(matches) else "changed"


def verify(ingest: Ingest, step: Step) -> StepOutcome:
    """`verify`: reads a large upload, and makes it ready if size and SHA-256 are as announced."""
    request, turn = step.request, step.turn(lambda done: {"bytes": done})
    file_id = str(request.payload["file_id"])
    try:
        verified = ingest.uploads().verify(
            request.project_id, file_id, lambda key, found: ingest.reader.check(key, found, turn)
        )
    except SignatureMismatch:
        forget_digest(ingest, request)
        raise
    if verified is None:
        return StepOutcome(state={"goes_on": True})
    file, writes = verified
    result = {"file_id": file.file_id, "signature": file.signature, "size": file.size}

    def after() -> None:
        ingest.uploads().drop_duplicate(file)
        forget_digest(ingest, request)

    return StepOutcome(result, writes, after=after)


# --- by type

_STEPS: Mapping[str, Callable[[Ingest, Step], StepOutcome]] = {
    "download": download,
    "scan": scan_source,
    "associate": associate,
    "check": check_file,
    "extract": extract,
    "verify": verify,
}
_DISCARDS: Mapping[str, Callable[[Ingest, Request], None]] = {
    "download": discard,
    "check": forget_digest,
    "verify": forget_digest,
}
