"""One page of a caller's source: asked for safely, signed, so that the source can know us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidegate.common.ids import Clock, digest
from tidegate.errors import FetchError, UseAsync
from tidegate.exports.ports import ReadPage
from tidegate.exports.source_page import Place, page_url
from tidegate.http.client import SafeHttp
from tidegate.http.credentials import Credential
from tidegate.http.model import MEGABYTE, Limits
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.credential_store import CredentialStore
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
        credentials: CredentialStore | None = None,
    ) -> None:
        self._http = http
        self._sign = sign
        self._project_of = project_of
        self._clock = clock
        self._limits = limits
        # None where whoever asks may not read secrets.
        self._credentials = credentials

    def reader(self, project_id: str, task_id: str, credential: str | None = None) -> ReadPage:
        """`credential` is the name of a stored one; each URL has to be of an origin that it is for."""
        held = None
        if credential is not None:
            if self._credentials is None:
                raise UseAsync("a stored credential is not read here; order the export by POST /v1/task")
            held = self._credentials.get(project_id, credential)
        return partial(self._fetch, self._project_of(project_id), task_id, held)

    def _fetch(
        self,
        project: Project,
        task_id: str,
        credential: Credential | None,
        source_url: str,
        place: Place,
        step: int,
        seconds: float | None = None,
    ) -> bytes:
        if credential is not None:
            credential.require(source_url, plain_text=project.allow_private_urls)
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
                credential=credential,
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
