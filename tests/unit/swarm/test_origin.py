"""Fetching from S3: expired links, errors and connections that are used again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import urllib3

from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock
from tidegate_client.download import Stalled
from tidegate_client.swarm.peers import Origin, OriginFailed

CONTENT = b"0123456789" * 100


@contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """A store that gives these statuses first, each with a body, then the ranges. Yields its URL and its callers."""
    left, callers = list(statuses), []

    def route(handler: Handler) -> None:
        callers.append(handler.client_address)
        status = left.pop(0) if left else 206
        body = b"x" * 60 if status != 206 else CONTENT[10:30]
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        if status == 206:
            handler.send_header("Content-Range", f"bytes 10-29/{len(CONTENT)}")
        handler.end_headers()
        handler.wfile.write(body)

    with serve(route) as port:
        yield f"http://127.0.0.1:{port}/file", callers


def fetched(origin: Origin) -> bytes:
    kept: list[bytes] = []
    origin.fetch(10, 20, kept.append, threading.Event())
    return b"".join(kept)


@pytest.mark.parametrize("status", [403, 503])
def test_request_after_a_refused_one_succeeds_at_once(status: int) -> None:
    with answering(status) as (url, _):
        origin = Origin(urllib3.PoolManager(maxsize=1), lambda _: url, None)
        with pytest.raises(OriginFailed):
            fetched(origin)
        assert fetched(origin) == CONTENT[10:30]


def test_connection_is_used_again_after_a_whole_answer() -> None:
    with answering() as (url, callers):
        origin = Origin(urllib3.PoolManager(maxsize=1), lambda _: url, None)
        assert fetched(origin) == fetched(origin) == CONTENT[10:30]
    assert len(set(callers)) == 1


def test_waiting_for_a_new_link_does_not_hold_up_other_pieces() -> None:
    waiting, done = threading.Event(), threading.Event()

    def link(refused: str | None) -> str:
        if refused is not None:
            waiting.set()
            done.wait(10)
        return url

    with answering(206, 403) as (url, _):
        origin = Origin(urllib3.PoolManager(maxsize=2), link, None)
        fetched(origin)

        def refused() -> None:
            with pytest.raises(OriginFailed):
                fetched(origin)

        thread = threading.Thread(target=refused)
        thread.start()
        try:
            assert waiting.wait(5)
            began = idle_clock()
            origin._count(1)
            assert idle_clock() - began < 1.0
        finally:
            done.set()
            thread.join()


def test_link_that_cannot_be_renewed_is_a_failure_of_this_attempt_only() -> None:
    def link(refused: str | None) -> str:
        if refused is not None:
            raise Stalled("no poll brought a new URL")
        return url

    with answering(403) as (url, _):
        origin = Origin(urllib3.PoolManager(), link, None)
        with pytest.raises(OriginFailed):
            fetched(origin)


def test_list_that_was_cut_short_is_asked_for_again() -> None:
    """Otherwise one broken connection would end the swarm for this host."""

    def route(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    with serve(route) as port:
        origin = Origin(urllib3.PoolManager(), lambda _: "", None)
        with pytest.raises(OriginFailed):
            origin.list_at(f"http://127.0.0.1:{port}/pieces", 1000)
