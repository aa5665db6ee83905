"""One invocation of an ingest request: does the work of its type, and ends the request with the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.aws.s3 import MultipartStore
from tidegate.common.ids import Clock
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
from tidegate.files.reading import TurnReader, saved_for_request
from tidegate.files.store import FileStore
from tidegate.files.upload import Uploads
from tidegate.http.client import SafeHttp
from tidegate.http.model import Limits
from tidegate.ingest.model import MAX_BYTES
from tidegate.ingest.values import Outcome, Step
from tidegate.projects.limits import RunnerTime
from tidegate.projects.projects import Projects
from tidegate.projects.secrets import CredentialStore
from tidegate.queue.log import RequestLog
from tidegate.queue.model import CANCELLED, COMPLETED, Request
from tidegate.queue.queue import RequestQueue, RunningAttempt, Timing
from tidegate.queue.store import Refused

# --- steps
# One invocation of an ingest request: does the work of its type, and ends the request with the result.

logger = Logger(service="tidegate", child=True)

# GET shows the bytes and the speed of the last heartbeat.
TIMING = Timing(look=2.0, beat=10.0)

Work = Callable[[Step], Outcome]
ReportProgress = Callable[[str, str, dict[str, Any]], None]


class IngestSteps:
    def __init__(
        self,
        queue: RequestQueue,
        work: Mapping[str, Work],
        report_progress: ReportProgress,
        log: RequestLog,
        clock: Clock,
        runner_time: RunnerTime,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._work = work
        self._progress = report_progress
        self._log = log
        self._clock = clock
        self._time = runner_time
        self._monotonic = monotonic

    def work(self, event: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
        """Runs one step. Returns the state machine's next input, in which `more` says whether to invoke again."""
        passed = {name: event[name] for name in ("project_id", "request_id", "attempt", "deadline") if name in event}
        attempt = (str(event["project_id"]), str(event["request_id"]), int(event["attempt"]))
        if "failure" in event:
            cause = str(event["failure"])
            logger.error("the function that ran the step died", **passed, cause=cause[:500])
            died = WorkerLost("the function that ran this attempt died before it was done")
            # The cause may have a stack trace and names of AWS resources: only operators see the line's stack.
            self._log.write(*attempt, "died", died.detail, error=WorkerLost(cause))
            # This attempt saved some of its work, and the next one continues there.
            died.progressed = event.get("state") is not None or self._saved_some(attempt)
            return self._end(passed, attempt, error=died)
        began = self._clock()
        try:
            outcome = self._step(event, attempt, seconds_left)
        except LeaseLost as lost:
            logger.info("the step was stopped", **passed, why=lost.detail)
            self._log.write(*attempt, "stopped", lost.detail, since=began)
            self._discard(attempt)
            return passed | {"more": False}
        except DomainError as error:
            self._log.write(*attempt, "failed", error.detail, since=began, error=error)
            return self._end(passed, attempt, error=error)
        except Exception as error:
            # The state machine catches the error. Its text may name AWS resources: only operators see the line's stack.
            self._log.write(*attempt, "died", "an unexpected error", since=began, error=error)
            raise
        if outcome.state is not None:
            self._log.write(*attempt, "goes on", "the time of one invocation is over", since=began)
            return passed | {"more": True, "state": dict(outcome.state)}
        self._log.write(*attempt, "done", _summary(outcome.result), since=began)
        ended = self._end(passed, attempt, result=outcome.result, extra_writes=outcome.extra_writes)
        if outcome.after and ended.get("status") == COMPLETED:
            outcome.after()
        return ended

    def _step(self, event: Mapping[str, Any], attempt: tuple[str, str, int], seconds_left: float) -> Outcome:
        request = self._queue.heartbeat(*attempt)
        self._log.write(*attempt, "begun", f"{request.type}, {seconds_left:.0f} s of this invocation left")
        running = RunningAttempt(
            self._queue, request, TIMING, self._report_progress, now=self._monotonic, heartbeat_sent=True
        )
        with self._time.counted(request.project_id):
            return self._work[request.type](Step(request, running, seconds_left, event.get("state")))

    def _report_progress(self, request: Request, progress: Mapping[str, Any]) -> None:
        self._progress(request.project_id, request.request_id, {"status": request.status, "progress": dict(progress)})

    def _saved_some(self, attempt: tuple[str, str, int]) -> bool:
        request = self._queue.get(*attempt[:2])
        stored_since = getattr(self._work.get(request.type), "stored_since", None)
        began = datetime.fromisoformat(request.start_time) if request.start_time else None
        return bool(
            stored_since
            and began
            and request.attempt == attempt[2]
            and stored_since(request, began.replace(microsecond=0))
        )

    def _discard(self, attempt: tuple[str, str, int]) -> None:
        """Deletes the stored parts of a cancelled request. Others may be resumed or retried, and keep theirs."""
        request = self._queue.get(*attempt[:2])
        discard = getattr(self._work.get(request.type), "discard", None)
        if discard and request.status == CANCELLED:
            discard(request)

    def _end(self, passed: dict[str, Any], attempt: tuple[str, str, int], **outcome: Any) -> dict[str, Any]:
        try:
            ended = self._queue.finish(*attempt, **outcome)
        except Refused as refused:
            # Another request stored the same content, or used up the quota. The next attempt looks again.
            logger.info("the step is repeated by the next attempt", **passed, why=refused.detail)
            ended = self._queue.finish(
                *attempt, error=WorkerLost("another request changed the project's content at the same time")
            )
        logger.info("the request ended", **passed, status=ended.status, code=(ended.error or {}).get("code"))
        self._discard(attempt)
        return passed | {"more": False, "status": ended.status}


def _summary(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.items())


# --- library steps
# `associate` makes a file of content that is stored already. `check` verifies stored content against its source.


class Associate:
    def __init__(self, parts: MultipartStore, files: FileStore) -> None:
        self._parts = parts
        self._files = files

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = _file(self._files, request.project_id, request.payload)
        signature = str(file.signature)
        stored = self._parts.head(self._files.object_of(request.project_id, signature))
        if stored is None or not self._files.has_content(request.project_id, signature):
            raise FileNotFound(f"this project has no content with the SHA-256 {signature}: upload or download it first")
        bound = replace(file, state=READY, size=stored.size, error=None)
        result = {"file_id": file.file_id, "signature": signature, "size": stored.size}
        return Outcome(result, self._files.finish_writes(bound, was=(COMING, FAILED)))


class Check:
    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        reader: TurnReader,
        files: FileStore,
        projects: Projects,
        credentials: CredentialStore,
    ) -> None:
        self._http = http
        self._parts = parts
        self._reader = reader
        self._files = files
        self._projects = projects
        self._credentials = credentials

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = _file(self._files, request.project_id, request.payload)
        if file.state != READY or file.signature is None:
            raise WrongState(f"the file {file.file_id} is {file.state}: check it when it is ready")
        key = self._files.object_of(request.project_id, file.signature)
        stored = self._parts.head(key)
        if stored is None:
            raise RecordNotFound("the content is gone from the bucket: upload or fetch the file again")
        read = self._reader.check(key, stored, step.turn(lambda _: {}), pieces=False)
        if read is None:
            return Outcome(state={"goes_on": True})
        if read.signature != file.signature:
            self.discard(request)
            raise SignatureMismatch(
                f"the stored content's SHA-256 is {read.signature}, not {file.signature}: upload the file again"
            )
        result = {"file_id": file.file_id, "signature": file.signature, "size": stored.size}
        url = request.payload.get("source_url") or file.source_url
        if url:
            result["source"] = self._source(step, file, str(url))
        return Outcome(result, after=lambda: self.discard(request))

    def discard(self, request: Request) -> None:
        """Deletes the saved digest of a request that has ended."""
        self._reader.forget(saved_for_request(request.project_id, request.request_id))

    def _source(self, step: Step, file: File, url: str) -> str:
        """`same`, `changed`, `gone`, or `unknown` if the source sends neither a size nor an ETag."""
        project_id = step.request.project_id
        name = step.request.payload.get("credentials")
        credential = self._credentials.get(project_id, str(name)) if name else None
        allow_private = self._projects.get(project_id).allow_private_urls
        if credential:
            credential.require(url, plain_text=allow_private)
        reply = self._http.send(
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


def _file(files: FileStore, project_id: str, payload: Mapping[str, Any]) -> File:
    return files.require(project_id, str(payload["file_id"]))


# --- verify
# `verify`: reads a large upload, and makes it ready if it is what was announced.


class Verify:
    def __init__(self, uploads: Uploads, reader: TurnReader) -> None:
        self._uploads = uploads
        self._reader = reader

    def __call__(self, step: Step) -> Outcome:
        request, turn = step.request, step.turn(lambda done: {"bytes": done})
        file_id = str(request.payload["file_id"])
        try:
            verified = self._uploads.verify(
                request.project_id, file_id, lambda key, found: self._reader.check(key, found, turn)
            )
        except SignatureMismatch:
            self.discard(request)
            raise
        if verified is None:
            return Outcome(state={"goes_on": True})
        file, writes = verified
        result = {"file_id": file.file_id, "signature": file.signature, "size": file.size}

        def after() -> None:
            self._uploads.drop_duplicate(file)
            self.discard(request)

        return Outcome(result, writes, after=after)

    def discard(self, request: Request) -> None:
        """Deletes the saved digests of a request that has ended."""
        self._reader.forget(saved_for_request(request.project_id, request.request_id))
