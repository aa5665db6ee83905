"""Sources that send more bytes than were requested or announced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from tests.support.http_servers import Handler
from tests.support.ingest.running import Library
from tests.support.ingest.small_parts import small_parts
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.files.model import content_object
from tidegate.ingest import fetch as ranged_parts

PART = 64 * 1024
# More than the buffers of a connection hold, so a source that could send all of it had a reader to the end.
ENDLESS = 48 * 1024 * 1024


@pytest.fixture
def large() -> Iterator[bytes]:
    """Four parts."""
    with small_parts(PART, parallel_from=3 * PART), patch.object(ranged_parts, "_FIRST_PAUSE", 0.01):
        yield os.urandom(4 * PART)


class Endless:
    """Answers the chosen requests with right headers, but without a length, and with zeros that do not end."""

    def __init__(self, hosted: Hosted, chosen: Callable[[Handler], bool]) -> None:
        self._hosted = hosted
        self._chosen = chosen
        # Bytes of each answer that the client took, or that are on their way.
        self.sent: list[int] = []

    def __call__(self, handler: Handler) -> bool:
        if not self._chosen(handler):
            return False
        body, wanted = self._hosted.body, handler.headers.get("Range", "").removeprefix("bytes=")
        handler.send_response(206 if wanted else 200)
        handler.send_header("ETag", self._hosted.etag)
        if wanted:
            handler.send_header("Content-Range", f"bytes {wanted}/{len(body)}")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        self._send(handler, b"" if wanted else body[: len(body) // 2])
        return True

    def _send(self, handler: Handler, first: bytes) -> None:
        number = len(self.sent)
        self.sent.append(0)
        try:
            handler.wfile.write(first)
            while self.sent[number] < ENDLESS:
                handler.wfile.write(bytes(PART))
                self.sent[number] += PART
        except OSError:
            return


def is_part(handler: Handler) -> bool:
    """Whether a part is requested: neither the whole file nor one byte, as a probe does."""
    first, _, last = handler.headers.get("Range", "").removeprefix("bytes=").partition("-")
    return first != last


def test_range_without_end_is_given_up_at_once(library: Library, source: FileSource, large: bytes) -> None:
    hosted = source.files["/a.bin"] = Hosted(large)
    source.hook = endless = Endless(hosted, is_part)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["error"]["code"]) == ("pending", "upstream_error"), request
    assert (library.objects(), library.uploads()) == ({}, [])
    assert endless.sent
    assert max(endless.sent) < ENDLESS


def test_mirror_that_sends_too_much_is_left_out_with_its_bytes(
    library: Library, source: FileSource, large: bytes
) -> None:
    source.files["/a"] = Hosted(large)
    mirror = source.files["/b"] = Hosted(large)
    source.hook = endless = Endless(mirror, lambda handler: handler.path == "/b" and is_part(handler))

    asked = library.ask(source.url("/a"), mirrors=[source.url("/b")])
    library.run()

    assert library.request(asked["request_id"])["status"] == "completed"
    signature = hashlib.sha256(large).hexdigest()
    assert library.objects() == {content_object(library.project.id, signature): large}
    assert endless.sent
    assert max(endless.sent) < ENDLESS


def test_stream_without_end_is_given_up_at_the_announced_size(
    library: Library, source: FileSource, large: bytes
) -> None:
    hosted = source.files["/a.bin"] = Hosted(large, ranges=False, cuts=1)
    source.hook = endless = Endless(hosted, lambda handler: "Range" not in handler.headers and len(source.seen) > 1)

    asked = library.ask(source.url("/a.bin"))
    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["error"]["code"]) == ("pending", "upstream_error"), request
    assert (library.objects(), library.uploads()) == ({}, [])
    assert endless.sent
    assert max(endless.sent) < ENDLESS
