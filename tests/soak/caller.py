"""A caller of the API as a careful one is: it repeats what was not answered, with the same Idempotency-Key."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from tests.soak.ledger import Ledger
from tests.support.deployed import Deployed, DeployedProject

# What a caller repeats: no answer, a busy or restarting service, a function that was killed.
_AGAIN = {429, 500, 502, 503, 504}
_PATIENCE = 600.0
# No caller waits so long. But a process that starts on a busy machine may need minutes, and each repetition of a call
# that is only slow would start one more.
_ANSWER_SECONDS = 300.0
_TRY_AGAIN = {"idempotency_in_progress", "conflict"}


class Unanswered(Exception):
    pass


class Caller:
    def __init__(self, cloud: Deployed, project: DeployedProject, ledger: Ledger) -> None:
        self.cloud = cloud
        cloud.pool = urllib3.PoolManager(maxsize=32, timeout=urllib3.Timeout(_ANSWER_SECONDS), retries=False)
        self.project = project
        self.ledger = ledger

    def call(
        self, method: str, path: str, *, key: str = "", allowed: tuple[int, ...] = (), **options: Any
    ) -> tuple[int, Any]:
        """(status, answer) of a 2xx or an allowed status. `allowed` is what may come of a repeated or a late call."""
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        began = time.monotonic()
        without: Counter[str] = Counter()
        while True:
            status, answer = self._try(method, path, key or self.project.key, headers, options)
            if status == 409 and answer["code"] in _TRY_AGAIN:
                # It says so itself. The function that has the first try may be dead: the key is free after a while.
                status = 503
            if status in allowed or 200 <= status < 300:
                self.ledger.count("calls answered")
                self.ledger.waited(f"{method} {path}", time.monotonic() - began, without)
                return status, answer
            if status and status not in _AGAIN:
                raise AssertionError(f"{method} {path}: {status} {answer}")
            self.ledger.count("calls repeated")
            why = self._reason(status, answer)
            self.ledger.count(f"calls repeated after: {why}")
            without[why] += 1
            if time.monotonic() - began > _PATIENCE:
                raise Unanswered(f"{method} {path}: {dict(without)}, at last {status} {answer}")
            time.sleep(0.5)

    def _try(
        self, method: str, path: str, key: str, headers: dict[str, str], options: dict[str, Any]
    ) -> tuple[int, Any]:
        try:
            answer = self.cloud.http(method, path, key=key, headers=headers, **options)
        except urllib3.exceptions.HTTPError as error:
            return 0, {"code": type(error).__name__}
        try:
            return answer.status, answer.json() if answer.body else None
        except ValueError:
            # The emulator's own words instead of the product's.
            return (answer.status if answer.status >= 500 else 0), {"message": answer.body[:60]}

    @staticmethod
    def _reason(status: int, answer: Any) -> str:
        """Why a call is repeated: the error's code, or what the emulator says of a function that ended."""
        said = answer if isinstance(answer, dict) else {}
        return f"{status} {said.get('code') or said.get('message') or said.get('errorMessage')}"[:80]

    def admin(self, method: str, path: str, **options: Any) -> Any:
        return self.call(method, path, key=self.cloud.admin_key, **options)[1]

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.call("POST", path, json=body, **options)[1]

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query or None)[1]

    def pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self.get(path, limit=100, **query, **more)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            more = {"cursor": page["next_cursor"]}

    def bytes_of(self, url: Callable[[], str]) -> bytes:
        """The object behind a presigned URL, which is made anew for each try."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                answer = self.cloud.pool.request("GET", url())
                if answer.status == 200:
                    return bytes(answer.data)
                said = f"{answer.status} {answer.data[:200]!r}"
            except urllib3.exceptions.HTTPError as error:
                said = str(error)
            if time.monotonic() > deadline:
                raise Unanswered(said)
            time.sleep(0.5)

    def store(self, file_path: str, content: bytes) -> str:
        """Uploads content until the library has it. Returns its SHA-256."""
        signature = hashlib.sha256(content).hexdigest()
        announced = {"biz_id": 2, "app_id": 3, "file_path": file_path, "signature": signature, "size": len(content)}
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            file = self.post("/v1/files", announced)
            if file.get("upload_url"):
                try:
                    put = self.cloud.pool.request(
                        "PUT", file["upload_url"], body=content, headers=file["upload_headers"]
                    )
                except urllib3.exceptions.HTTPError:
                    continue
                if put.status not in (200, 412):
                    continue
            status, _ = self.call("POST", f"/v1/files/{file['file_id']}/complete", allowed=(404, 409, 422))
            while status == 202 and self.get(f"/v1/files/{file['file_id']}")["state"] == "verifying":
                time.sleep(0.5)
            if status < 300 and self.get(f"/v1/files/{file['file_id']}")["state"] == "ready":
                return signature
        raise Unanswered(f"{file_path} could not be uploaded")
