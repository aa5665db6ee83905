"""Parses requests to the port strictly. Only a request with a valid token of a swarm is answered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate_client.swarm.port.callers import Refused
from tidegate_client.swarm.terms import caller_of

_LINE = re.compile(rb"GET /swarm/([0-9a-f]{32})/(have|pieces|blocks|piece/(\d{1,7})) HTTP/1\.1\r\n")
_AUTHORIZATION = re.compile(rb"\r\nAuthorization: ([ -~]{1,600})\r\n", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nRange: bytes=(\d{1,10})-(\d{1,10})\r\n", re.IGNORECASE)


class Served(Protocol):
    """One swarm as the port uses it: implemented by the session, and by fakes in tests."""

    accept: bytes

    def list_of(self, name: str) -> bytes | None: ...

    def has(self, piece: int) -> bool: ...

    def piece_length(self, piece: int) -> int: ...

    async def read(self, piece: int, offset: int, length: int) -> bytes: ...

    def is_near(self, caller: str) -> bool: ...

    def mark_reached(self) -> None: ...

    def subscribe(self, writer: asyncio.StreamWriter) -> None: ...

    def unsubscribe(self, writer: asyncio.StreamWriter) -> None: ...


@dataclass(slots=True)
class Request:
    swarm: Served
    caller: str
    path: str
    piece: int
    # First and last byte of the requested part; None: the whole piece.
    span: tuple[int, int] | None


def read_request(head: bytes, swarms: Mapping[str, Served]) -> Request:
    """Parses the head of a request. Raises Refused unless it is a well-formed request of a neighbour."""
    matched, authorization = _LINE.match(head), _AUTHORIZATION.search(head)
    if matched is None or authorization is None:
        raise Refused
    swarm = swarms.get(matched[1].decode())
    if swarm is None:
        raise Refused
    caller = caller_of(authorization[1].decode(), matched[1].decode(), swarm.accept)
    if caller is None:
        raise Refused
    ranged = _RANGE.search(head)
    span = (int(ranged[1]), int(ranged[2])) if ranged else None
    return Request(swarm, caller, matched[2].decode(), int(matched[3] or 0), span)
