"""Fetches one page of a caller's source: by a signed HTTP request, or directly from an AWS service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidegate.common.ids import Clock, digest
from tidegate.errors import FetchError, UseAsync
from tidegate.exports.model import DIRECT
from tidegate.exports.ports import ReadPage
from tidegate.exports.source_page import Place, page_url
from tidegate.http.client import SafeHttp
from tidegate.http.credentials import Credential
from tidegate.http.host_limits import HostLimits
from tidegate.http.model import MEGABYTE, Limits
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.credential_store import CredentialStore
from tidegate.projects.model import Project

if TYPE_CHECKING:
    from tidegate.exports.direct.sources import DirectSources

# How long a request waits for its turn under `source_rate`; after that the page is retried.
_PATIENCE = 60.0
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
        # None in functions without the permission to read secrets.
        self._credentials = credentials

    def reader(self, project_id: str, task_id: str, credential: str | None = None) -> ReadPage:
        """`credential` is the name of a stored credential, which is sent only to the origins that it is for."""
        stored = None
        if credential is not None:
            if self._credentials is None:
                raise UseAsync("stored credentials are only available to POST /v1/task: order the export there")
            stored = self._credentials.get(project_id, credential)
        return partial(self._fetch, self._project_of(project_id), task_id, stored)

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
            detail = f"page {place.page} of the source: {error.detail}"
            raise type(error)(detail, retry_after=error.retry_after, upstream_status=error.upstream_status) from error
        return reply.body


class Sources:
    """Reads pages by the address of their table: a URL, or a direct source such as an S3 object."""

    def __init__(
        self,
        signed: SignedSource,
        direct: DirectSources | None = None,
        limits_of: Callable[[int], HostLimits] = lambda _: HostLimits(),
    ) -> None:
        self._signed = signed
        # By calls per second; counted over all functions.
        self._limits_of = cache(limits_of)
        # None in functions without the permission to read them.
        self._direct = direct

    def reader(self, project_id: str, task_id: str, credential: str | None = None, rate: int | None = None) -> ReadPage:
        """`rate` limits the requests per second to a host, of all exports of the project that set a rate."""
        read_url = self._signed.reader(project_id, task_id, credential)
        limits = self._limits_of(rate) if rate else None

        def read(source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
            if not source_url.startswith(DIRECT):
                if limits:
                    limits.call(f"{project_id} {urlsplit(source_url).netloc.lower()}", _PATIENCE)
                return read_url(source_url, place, step, seconds)
            if self._direct is None:
                raise UseAsync("`source` is only available to POST /v1/task: order the export there")
            return self._direct.page(project_id, task_id, source_url, place, step)

        return read


def _within(limits: Limits, seconds: float) -> Limits:
    return replace(
        limits,
        connect=min(limits.connect, seconds),
        read=min(limits.read, seconds),
        total=min(limits.total, seconds),
    )
