"""Fetches ranges of one version of a file in parallel. Parts that S3 has are not fetched again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tidegate.errors import ConnectionFailed, DomainError, FetchError, NotSent
from tidegate.ingest import model
from tidegate.ingest.fetching.mirrors import LONGEST_PAUSE, Mirrors
from tidegate.ingest.fetching.model import Fetched
from tidegate.ingest.fetching.ranges import SourceChanged, until_cut
from tidegate.ingest.fetching.run import PartJob, Run
from tidegate.ingest.fetching.unfinished import Unfinished, UnfinishedStore
from tidegate.ingest.model import Source, parts_of

# How often a part is tried without receiving a byte of it.
_TRIES = 5
_FIRST_PAUSE = 0.5
# No part is begun when fewer seconds of the invocation are left, so that running ones can finish.
_RESERVE_SECONDS = 45.0
# A function reads from S3 and hashes at least this many bytes per second.
_HASHED_PER_SECOND = 50 * 1024 * 1024


class Parts:
    def __init__(self, run: Run, unfinished: UnfinishedStore) -> None:
        self._run = run
        self._unfinished = unfinished

    def probed(self, source: Source) -> Source:
        """The source, with `ranges` set if it answers one: not every server that can send ranges says so."""
        size = source.size
        if source.ranges or size is None or size < model.PARALLEL_FROM or not source.validated:
            return source
        able = replace(source, ranges=True)
        try:
            with self._run.range(self._run.remote.url, size - 1, size - 1, able):
                return able
        except FetchError:
            return source

    def start(self, source: Source) -> Fetched | None:
        mirrors = Mirrors(self._run, self._run.remote.url, source)
        mirrors.find(self._run.remote.mirrors)
        return self._fetch(self._begin(source), {}, mirrors)

    def resume(self, begun: Unfinished) -> Fetched | None:
        run = self._run
        stored = run.store.parts(begun.key, begun.upload_id)
        run.total = begun.size
        if stored is None:
            if run.store.head(begun.key) is None:
                raise SourceChanged("the stored parts are gone: the download starts again")
            # An earlier run completed the upload, then died.
            return self._whole(begun, None)
        mirrors = Mirrors(run, begun.url, begun.source, rests=begun.url not in run.remote.urls)
        mirrors.find(run.remote.urls)
        if not mirrors:
            error = NotSent(
                "the source asked for a pause, and no mirror has the same version of the file",
                retry_after=LONGEST_PAUSE,
            )
            error.put_off = True
            raise error
        return self._fetch(begun, stored, mirrors)

    def _begin(self, source: Source) -> Unfinished:
        run = self._run
        run.began = True
        upload_id = run.store.begin_upload(run.wanted.key)
        version = (source.size, source.etag, source.last_modified, source.ranges)
        mine = Unfinished(run.wanted.key, upload_id, run.remote.url, *version)
        begun = self._unfinished.begin(run.wanted.request, mine)
        if begun.upload_id != upload_id:
            # Another run of this step began an upload first: continue that one.
            run.store.abort_upload(run.wanted.key, upload_id)
            if begun.source != source:
                raise SourceChanged(
                    "another run of this request found another version of the source: the download starts again"
                )
        return begun

    def _fetch(self, begun: Unfinished, stored: Mapping[int, object], mirrors: Mirrors) -> Fetched | None:
        run, size = self._run, begun.size or 0
        missing = [part for part in parts_of(size) if part[0] not in stored]
        before = run.taken = size - sum(last - start + 1 for _, start, last in missing)

        def jobs() -> Iterator[PartJob]:
            for number, start, last in missing:
                if run.seconds_left < _RESERVE_SECONDS:
                    return
                yield lambda number=number, start=start, last=last: self._bring(  # type: ignore[misc]
                    begun, mirrors, number, start, last
                )

        try:
            run.pump(jobs(), hashed=not stored)
        except DomainError as error:
            # An attempt that got further does not count against the retries.
            error.progressed = run.taken > before and not isinstance(error, SourceChanged)
            raise
        if run.taken < size:
            return None
        if stored and missing and run.seconds_left < _RESERVE_SECONDS + size / _HASHED_PER_SECOND:
            # The whole object must be read for its digest, which the next invocation has time for.
            return None
        return self._whole(begun, None if stored else run.digest.hexdigest())

    def _whole(self, begun: Unfinished, digest: str | None) -> Fetched:
        upload = (begun.key, begun.upload_id)
        return Fetched(begun.size or 0, begun.etag, digest, upload, validated=begun.source.validated)

    def _bring(self, begun: Unfinished, mirrors: Mirrors, number: int, start: int, last: int) -> bytearray:
        run = self._run
        piece, failures, size = bytearray(), 0, last - start + 1
        while len(piece) < size:
            before = len(piece)
            address = mirrors.at(number + failures)
            try:
                with run.range(address.url, start + before, last, address.source) as stream:
                    for chunk in until_cut(stream, address.source, size - before):
                        run.require_running()
                        piece += chunk
                        run.pacer.after_bytes(len(chunk))
                mirrors.worked(address)
            except FetchError as error:
                if isinstance(error, SourceChanged):
                    # Another address may go on here, so nothing that this one sent for the range may stay.
                    del piece[before:]
                if not mirrors.leave_out(address, error):
                    self._pause_after(error, failures)
            failures = failures + 1 if len(piece) == before else 0
            if failures >= _TRIES:
                raise ConnectionFailed(f"the connection broke {failures} times before a byte of part {number} arrived")
        return run.put_part(begun.key, begun.upload_id, number, piece)

    def _pause_after(self, error: FetchError, failures: int) -> None:
        pause = max(_FIRST_PAUSE * 2**failures, error.retry_after or 0.0)
        hopeless = isinstance(error, SourceChanged) or not error.retryable
        if hopeless or pause > LONGEST_PAUSE or failures + 1 >= _TRIES:
            raise error
        self._run.rest(pause)
