"""Answers that are parts of one version of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tidegate.errors import ConnectionFailed, FetchTimeout, UpstreamError
from tidegate.http.client import Stream
from tidegate.ingest.model import Source, starts_at

_CHUNK = 256 * 1024


def same_version(source: Source) -> dict[str, str]:
    """A source that changes while it is fetched must not be stitched together from two versions."""
    return {"if-match": source.strong_etag} if source.strong_etag else {}


class Ranged(AbstractContextManager[Stream]):
    """A stream that must be the asked-for part."""

    def __init__(self, opened: AbstractContextManager[Stream], start: int) -> None:
        self._opened = opened
        self._start = start

    def __enter__(self) -> Stream:
        stream = self._opened.__enter__()
        try:
            if stream.status == 412:
                raise UpstreamError("the source changed while it was fetched")
            stream.raise_for_status()
            if stream.status != 206 or starts_at(stream.headers) != self._start:
                raise UpstreamError("the source did not send the part that was asked for")
        except BaseException as error:
            self._opened.__exit__(type(error), error, error.__traceback__)
            raise
        return stream

    def __exit__(self, *error: object) -> bool | None:
        return self._opened.__exit__(*error)  # type: ignore[arg-type]


def until_cut(stream: Stream, source: Source) -> Iterator[bytes]:
    """A cut is the end of what came, where whoever reads knows how much should have come."""
    try:
        yield from stream.chunks(_CHUNK)
    except (ConnectionFailed, FetchTimeout):
        if source.size is None:
            raise
