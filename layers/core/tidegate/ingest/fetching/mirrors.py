"""The URLs from which a file's parts are fetched: the first one, and mirrors that have the same version."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidegate.errors import FetchError
from tidegate.ingest.fetching.ranges import SourceChanged
from tidegate.ingest.fetching.run import Run
from tidegate.ingest.model import Source, source_of, total_of

# If a source asks for a longer pause, a mirror or the next attempt continues.
LONGEST_PAUSE = 20.0
# A URL that failed this often in a row is not used again while there are others.
_MOST_FAILURES = 2


@dataclass(slots=True)
class Address:
    """A URL of the file. `source` has the validators of this URL: mirrors may use different ETags for one file."""

    url: str
    source: Source
    failures: int = 0


class Mirrors:
    def __init__(self, run: Run, url: str, source: Source, *, rests: bool = False) -> None:
        """`rests`: the host of `url` asked for a pause, so only mirrors may be used."""
        self._run = run
        self._source = source
        self._first = url
        self._addresses = [] if rests else [Address(url, source)]
        self._lock = threading.Lock()

    def find(self, urls: Iterable[str]) -> None:
        """Adds the URLs that have the same version of the file: the same size, and the same ETag or Last-Modified."""
        for url in urls:
            if url == self._first:
                continue
            try:
                with self._run.open(url, {"range": "bytes=0-0"}) as stream:
                    mirror = replace(source_of(stream.headers), size=total_of(stream.headers), ranges=True)
                    if stream.status == 206 and _agree(self._source, mirror):
                        self._addresses.append(Address(url, mirror))
            except FetchError:
                continue

    def __len__(self) -> int:
        return len(self._addresses)

    def at(self, number: int) -> Address:
        """The address for part `number`: parts are spread evenly."""
        with self._lock:
            return self._addresses[number % len(self._addresses)]

    def worked(self, address: Address) -> None:
        address.failures = 0

    def leave_out(self, address: Address, error: FetchError) -> bool:
        """Counts a failure. True if the address was removed, so that another one can be used at once."""
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
    """The same ETag, or the same Last-Modified: mirrors often keep the time, but have other ETags."""
    same_etag = one.strong_etag is not None and one.strong_etag == other.strong_etag
    same_time = one.last_modified is not None and one.last_modified == other.last_modified
    return one.size == other.size and (same_etag or same_time)
