"""Which addresses a file's parts are asked from: the first one and the mirrors that have the same version of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidegate.errors import FetchError
from tidegate.ingest.fetching.ranges import SourceChanged
from tidegate.ingest.fetching.run import Run
from tidegate.ingest.model import Source, source_of, total_of

# A source that asks for a longer pause is left alone: a mirror, or the next attempt, goes on.
LONGEST_PAUSE = 20.0
# An address that failed so often in a row is not asked again while there are others.
_MOST_FAILURES = 2


@dataclass(slots=True)
class Address:
    """`source` is the file's version as this address names it: mirrors may give one file different ETags."""

    url: str
    source: Source
    failures: int = 0


class Mirrors:
    def __init__(self, run: Run, url: str, source: Source, *, rests: bool = False) -> None:
        """`rests`: the host of `url` asked for a pause, so that only mirrors may be asked."""
        self._run = run
        self._source = source
        self._first = url
        self._addresses = [] if rests else [Address(url, source)]
        self._lock = threading.Lock()

    def find(self, urls: Iterable[str]) -> None:
        """Adds those of the URLs that have the same version of the file, by its size and a validator."""
        for url in urls:
            if url == self._first:
                continue
            try:
                with self._run.open(url, {"range": "bytes=0-0"}) as stream:
                    told = replace(source_of(stream.headers), size=total_of(stream.headers), ranges=True)
                    if stream.status == 206 and _agree(self._source, told):
                        self._addresses.append(Address(url, told))
            except FetchError:
                continue

    def __len__(self) -> int:
        return len(self._addresses)

    def at(self, number: int) -> Address:
        """Parts are spread evenly over the addresses."""
        with self._lock:
            return self._addresses[number % len(self._addresses)]

    def worked(self, address: Address) -> None:
        address.failures = 0

    def leave_out(self, address: Address, error: FetchError) -> bool:
        """Whether the address is not asked any more, so that another can be asked at once."""
        with self._lock:
            address.failures += 1
            changed = isinstance(error, SourceChanged)
            hopeless = changed or not error.retryable or (error.retry_after or 0.0) > LONGEST_PAUSE
            others = [other for other in self._addresses if other is not address]
            if not others or (changed and address.url == self._first):
                return False
            if hopeless or address.failures >= _MOST_FAILURES:
                self._addresses = others
                return True
            return False


def _agree(one: Source, other: Source) -> bool:
    """The same ETag; or the same time of the last change, which mirrors keep while their servers make other ETags."""
    same_etag = one.strong_etag is not None and one.strong_etag == other.strong_etag
    same_time = one.last_modified is not None and one.last_modified == other.last_modified
    return one.size == other.size and (same_etag or same_time)
