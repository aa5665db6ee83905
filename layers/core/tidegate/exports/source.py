"""One page of a caller's source: asked for safely, signed, so that the source can know us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidegate.common.ids import Clock, digest
from tidegate.errors import FetchError
from tidegate.exports.ports import ReadPage
from tidegate.exports.source_page import Place, page_url
from tidegate.http.client import SafeHttp
from tidegate.http.model import MEGABYTE, Limits
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project

_LIMITS = Limits(connect=5.0, read=30.0, total=50.0, max_bytes=16 * MEGABYTE)


class SignedSource:
    def __init__(
        self,
        http: SafeHttp,
        sign: Signer,
        project_of: Callable[[str], Project],
        clock: Clock,
        limits: Limits = _LIMITS,
    ) -> None:
        self._http = http
        self._sign = sign
        self._project_of = project_of
        self._clock = clock
        self._limits = limits

    def reader(self, project_id: str, task_id: str) -> ReadPage:
        return partial(self._fetch, self._project_of(project_id), task_id)

    def _fetch(
        self, project: Project, task_id: str, source_url: str, place: Place, step: int, seconds: float | None = None
    ) -> bytes:
        message_id = "msg_" + digest(task_id, source_url, str(place.page), length=32)
        headers = self._sign(project, message_id, self._clock())
        limits = self._limits if seconds is None else _within(self._limits, seconds)
        try:
            reply = self._http.send(
                "GET",
                page_url(source_url, place, step, task_id),
                headers={"accept": "application/json", **headers},
                allow_private=project.allow_private_urls,
                limits=limits,
                project_id=project.project_id,
            )
            reply.raise_for_status()
        except FetchError as error:
            said = f"page {place.page} of the source: {error.detail}"
            raise type(error)(said, retry_after=error.retry_after, upstream_status=error.upstream_status) from error
        return reply.body


def _within(limits: Limits, seconds: float) -> Limits:
    return replace(
        limits,
        connect=min(limits.connect, seconds),
        read=min(limits.read, seconds),
        total=min(limits.total, seconds),
    )
