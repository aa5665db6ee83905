"""Fetches a file as one stream: small files, and sources without ranges or without ETag and Last-Modified."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from tidegate.errors import ConnectionFailed
from tidegate.http.client import Stream
from tidegate.ingest import model
from tidegate.ingest.fetching.model import Fetched
from tidegate.ingest.fetching.ranges import SourceChanged, until_cut
from tidegate.ingest.fetching.run import PartJob, Run
from tidegate.ingest.model import Source

# How often a broken connection is opened again.
_MOST_CUTS = 5


class OneStream:
    def __init__(self, run: Run, source: Source) -> None:
        self._run = run
        self._source = source

    def fetch(self, stream: Stream) -> Fetched:
        """Reads `stream` to its end. If its connection breaks, continues with a new one."""
        run, source = self._run, self._source
        pieces = self._pieces(stream)
        first = next(pieces, bytearray())
        if len(first) < model.PART_BYTES:
            return Fetched(len(first), source.etag, run.digest.hexdigest(), small=first)
        run.began = True
        key = run.wanted.key
        upload_id = run.store.begin_upload(key)

        def jobs() -> Iterator[PartJob]:
            yield lambda: run.put_part(key, upload_id, 1, first)
            for number, piece in enumerate(pieces, 2):
                yield lambda number=number, piece=piece: run.put_part(  # type: ignore[misc]
                    key, upload_id, number, piece
                )

        try:
            run.pump(jobs())
        except BaseException:
            run.store.abort_upload(key, upload_id)
            raise
        return Fetched(run.taken, source.etag, run.digest.hexdigest(), (key, upload_id))

    def _pieces(self, stream: Stream) -> Iterator[bytearray]:
        piece, got = bytearray(), 0
        for chunk in self._chunks(stream):
            self._run.report_progress()
            self._run.pacer.after_bytes(len(chunk))
            self._run.digest.update(chunk)
            got += len(chunk)
            piece += chunk
            if len(piece) >= model.PART_BYTES:
                yield piece[: model.PART_BYTES]
                piece = piece[model.PART_BYTES :]
        if self._source.size is not None and got != self._source.size:
            raise ConnectionFailed(f"the source sent {got} of {self._source.size} bytes")
        if piece:
            yield piece

    def _chunks(self, stream: Stream) -> Iterator[bytes]:
        """The stream's bytes. A broken connection is opened again and continued at the same byte."""
        source, got, cuts = self._source, 0, 0
        for chunk in until_cut(stream, source, source.size):
            got += len(chunk)
            yield chunk
        while source.size is not None and got < source.size:
            cuts += 1
            if cuts > _MOST_CUTS:
                raise ConnectionFailed(
                    f"the connection broke {cuts} times, the last time after {got} of {source.size} bytes"
                )
            with self._rest(got) as rest:
                again = rest.status == 200
                for chunk in self._after_known(rest, got) if again else until_cut(rest, source, source.size - got):
                    got += len(chunk)
                    yield chunk

    def _rest(self, got: int) -> AbstractContextManager[Stream]:
        run, source = self._run, self._source
        if got and source.ranges and (source.validated or run.wanted.signed) and source.size is not None:
            return run.range(run.remote.url, got, source.size - 1, source)
        return run.open(run.remote.url)

    def _after_known(self, stream: Stream, got: int) -> Iterator[bytes]:
        """Skips the first `got` bytes of a source that sends everything again, and checks that they are the same."""
        stream.raise_for_status()
        again, left = hashlib.sha256(), got
        for chunk in until_cut(stream, self._source, self._source.size):
            self._run.report_progress()
            known, new = chunk[:left], chunk[left:]
            again.update(known)
            left -= len(known)
            if left == 0 and known and again.digest() != self._run.digest.digest():
                raise SourceChanged(
                    "the source changed while it was fetched: after a broken connection it sent other bytes"
                )
            if new:
                yield new
