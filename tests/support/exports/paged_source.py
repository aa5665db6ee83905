"""A paged source over real HTTP, whose answers may be valid or not."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

Answer = Callable[["PagedSource", int, int], Any]


def honest(source: PagedSource, page: int, size: int) -> dict[str, Any]:
    rows = source.rows[page * size : (page + 1) * size]
    return {"status": 200, "msg": "", "data": {"data": rows, "total": len(source.rows), **source.more}}


def without_total(source: PagedSource, page: int, size: int) -> dict[str, Any]:
    answer = honest(source, page, size)
    del answer["data"]["total"]
    return answer


class PagedSource:
    """`answer` makes the body of a page (or a Response); `failures` has the statuses to return first, by page."""

    def __init__(self, server: HTTPServer, path: str = "/rows") -> None:
        self.rows: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}
        self.answer: Answer = honest
        self.failures: dict[int, list[int]] = {}
        self.requests: list[Request] = []
        self.url = server.url_for(path)
        self._lock = threading.Lock()
        server.expect_request(path).respond_with_handler(self._handle)

    @property
    def pages(self) -> Counter[int]:
        return Counter(int(request.args["page"]) for request in self.requests)

    def _handle(self, request: Request) -> Response:
        page, size = int(request.args["page"]), int(request.args["page_size"])
        with self._lock:
            self.requests.append(request)
            statuses = self.failures.get(page, [])
            status = statuses.pop(0) if statuses else 200
        if status != 200:
            return Response("the database is down", status=status)
        answer = self.answer(self, page, size)
        if isinstance(answer, Response):
            return answer
        return Response(json.dumps(answer, ensure_ascii=False), content_type="application/json")


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"名字{number}", "amount": number / 4} for number in range(count)]
