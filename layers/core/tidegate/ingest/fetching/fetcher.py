"""Fetches a URL into a multipart upload: several ranges in parallel, never the whole file in memory.

Parts that S3 has are not fetched again by the next invocation or attempt, as long as the source shows that the file
has not changed. A source without ETag or Last-Modified is read in one stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchError
from tidegate.http.client import SafeHttp
from tidegate.ingest.fetching.model import Fetched, Remote, Wanted
from tidegate.ingest.fetching.one_stream import OneStream
from tidegate.ingest.fetching.parts import Parts
from tidegate.ingest.fetching.ranges import SourceChanged
from tidegate.ingest.fetching.run import Run
from tidegate.ingest.fetching.unfinished import UnfinishedStore
from tidegate.ingest.model import MAX_BYTES, source_of
from tidegate.ingest.ports import Heartbeat
from tidegate.queue.model import Request


class Fetcher:
    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        unfinished: UnfinishedStore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._parts = parts
        self._unfinished = unfinished
        self._monotonic = monotonic

    def fetch(self, remote: Remote, wanted: Wanted, heartbeat: Heartbeat, seconds: float) -> Fetched | None:
        """What was fetched; None if the time is over and another call must continue."""
        until = self._monotonic() + seconds
        begun = self._unfinished.get(wanted.request)
        if begun:
            run = Run(self._http, self._parts, remote, wanted, heartbeat, until, self._monotonic)
            try:
                return Parts(run, self._unfinished).resume(begun)
            except SourceChanged:
                # The parts are of another version: start again with the present one.
                self.discard(wanted.request)
        return self._start_anywhere(remote, wanted, heartbeat, until)

    def _start_anywhere(self, remote: Remote, wanted: Wanted, heartbeat: Heartbeat, until: float) -> Fetched | None:
        """Fetches from the first of the URLs that works."""
        last: FetchError | None = None
        for number, url in enumerate(remote.urls):
            others = tuple(remote.urls[number + 1 :])
            now = replace(remote, url=url, mirrors=others)
            run = Run(self._http, self._parts, now, wanted, heartbeat, until, self._monotonic)
            try:
                return self._start(run)
            except (SourceChanged, ContentTooLarge):
                self.discard(wanted.request)
                raise
            except FetchError as error:
                if run.began or (error.retryable and not others):
                    raise
                last = last if last is not None and last.retryable else error
        raise last or ConnectionFailed("the request has no URL")

    def _start(self, run: Run) -> Fetched | None:
        parts = Parts(run, self._unfinished)
        with run.open(run.remote.url) as stream:
            stream.raise_for_status()
            source = source_of(stream.headers)
            run.total = source.size
            if source.size is not None:
                if source.size > MAX_BYTES:
                    raise ContentTooLarge(
                        f"the source has {source.size} bytes, but a file may have at most {MAX_BYTES}"
                    )
                run.wanted.require_room(source.size)
            source = parts.probed(source)
            if not source.in_parts(signed=run.wanted.signed):
                return OneStream(run, source).fetch(stream)
        return parts.start(source)

    def discard(self, request: Request) -> None:
        """Deletes the parts that were stored so far."""
        begun = self._unfinished.get(request)
        if begun:
            self._parts.abort_upload(begun.key, begun.upload_id)
            self._unfinished.forget(request, begun)
