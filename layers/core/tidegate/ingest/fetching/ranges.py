"""Checks that answers are the requested ranges, of one version of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tidegate.errors import ConnectionFailed, FetchTimeout, UpstreamError
from tidegate.http.client import Stream
from tidegate.ingest.model import Source, range_of

_CHUNK = 256 * 1024


class SourceChanged(UpstreamError):
    """The source sends another version of the file than the parts that were fetched, or not the requested bytes."""


class Ranged(AbstractContextManager[Stream]):
    """A stream that must be the requested range, of the same version as the other parts."""

    def __init__(self, opened: AbstractContextManager[Stream], start: int, last: int, source: Source) -> None:
        self._opened = opened
        self._start = start
        self._last = last
        self._source = source

    def __enter__(self) -> Stream:
        stream = self._opened.__enter__()
        try:
            self._check(stream)
        except BaseException as error:
            self._opened.__exit__(type(error), error, error.__traceback__)
            raise
        return stream

    def _check(self, stream: Stream) -> None:
        if stream.status == 412:
            raise SourceChanged("the source changed while it was fetched: it answered 412")
        if stream.status == 416:
            raise SourceChanged("the source became shorter while it was fetched: it answered 416")
        stream.raise_for_status()
        start, last = range_of(stream.headers) or (None, 0)
        # It may end earlier: the rest is requested again.
        if stream.status != 206 or start != self._start or last > self._last:
            raise SourceChanged(f"the source answered {stream.status} instead of the requested range")
        if not self._source.is_same(stream.headers):
            raise SourceChanged("the source changed while it was fetched: its ETag, Last-Modified or size differs")

    def __exit__(self, *error: object) -> bool | None:
        return self._opened.__exit__(*error)  # type: ignore[arg-type]


def until_cut(stream: Stream, source: Source, most: int | None) -> Iterator[bytes]:
    """The stream's chunks. A broken connection just ends them if the size is known: the reader sees what is missing.

    SourceChanged as soon as more than `most` bytes come. None: any number.
    """
    got = 0
    try:
        for chunk in stream.chunks(_CHUNK):
            got += len(chunk)
            if most is not None and got > most:
                # It does not implement ranges or lengths correctly, so none of its bytes can be trusted.
                raise SourceChanged(f"the source sent more than the {most} bytes that were requested or announced")
            yield chunk
    except (ConnectionFailed, FetchTimeout):
        if source.size is None:
            raise
