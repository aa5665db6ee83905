"""What hosts exchange: pieces of a file, the terms of a swarm, tokens, and the connection's receive buffer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_client.compat import count_bits, lost_connections

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Layout:
    """How a file is divided into pieces. A set of pieces is an integer in which bit n stands for piece n."""

    size: int
    piece_size: int

    @property
    def count(self) -> int:
        return -(-self.size // self.piece_size)

    @property
    def everything(self) -> int:
        """The set of all pieces."""
        return (1 << self.count) - 1

    @property
    def bitmap_bytes(self) -> int:
        return -(-self.count // 8)

    def start(self, piece: int) -> int:
        return piece * self.piece_size

    def length(self, piece: int) -> int:
        return min(self.piece_size, self.size - self.start(piece))

    def bytes_of(self, pieces: int) -> int:
        """Returns the number of bytes in a set of pieces. Only the last piece may be shorter than the others."""
        last = self.count - 1
        short = self.piece_size - self.length(last) if pieces >> last & 1 else 0
        return count_bits(pieces) * self.piece_size - short


def pieces_in(pieces: int) -> Iterator[int]:
    """Yields the numbers of the pieces in a set, lowest first."""
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest


# --- terms
# The swarm block of a transfer: what a host needs to know about its swarm, and the tokens that peers call with.

_ID = re.compile(r"[0-9a-f]{32}")
_MOST_PEERS = 64
_MOST_PIECES = 1 << 20
_TOKEN_BYTES = 16
# With a shorter key, strangers could guess tokens.
_SHORTEST_ACCEPT_KEY = 16


class BadTerms(ValueError):
    """This agent cannot use the terms of a swarm that the transfer has, so it downloads the file from S3."""


@dataclass(frozen=True)
class PeerTerms:
    """A neighbour in a swarm.

    Has the neighbour's addresses, the SHA-256 of its certificate (`pin`), and the token for calls to this neighbour."""

    id: str
    at: tuple[tuple[str, int], ...]
    pin: str
    token: str
    near: bool


@dataclass(frozen=True)
class Terms:
    """The terms of a swarm for one host: the file's layout, the host's neighbours and the times.

    Times are seconds by the server's clock: `age` since dispatch, `lasts` until the Job's deadline."""

    id: str
    number: int
    members: int
    seed: int
    age: float
    lasts: float
    layout: Layout
    pieces_sha256: str
    pieces_url: str
    # None if the library has no block list of this file: then nothing is reused from an older version.
    blocks_sha256: str | None
    blocks_url: str
    # The key with which this host verifies its callers' tokens.
    accept: bytes
    peers: tuple[PeerTerms, ...]
    ranks: int
    hold: float
    patience: float


def read_terms(block: Mapping[str, Any], size: int) -> Terms:
    """Reads the terms of a swarm from `block`, a part of a transfer. `size`: the size of the file.

    Raises BadTerms if the terms cannot be used."""
    try:
        terms = Terms(
            id=str(block["id"]),
            number=int(block["number"]),
            members=int(block["members"]),
            seed=int(block["seed"]),
            age=float(block["age"]),
            lasts=float(block["lasts"]),
            layout=Layout(size, int(block["piece_size"])),
            pieces_sha256=str(block["pieces_sha256"]),
            pieces_url=str(block["pieces_url"]),
            blocks_sha256=_text_or_none(block.get("blocks_sha256")),
            blocks_url=str(block.get("blocks_url") or ""),
            accept=decode(str(block["accept"])),
            peers=tuple(_peer(peer) for peer in block["peers"][:_MOST_PEERS]),
            ranks=int(block["ranks"]),
            hold=float(block["hold"]),
            patience=float(block["patience"]),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BadTerms(f"the transfer's swarm block cannot be read: {error!r}") from error
    sane = (
        _ID.fullmatch(terms.id)
        and 0 <= terms.number < terms.members
        and terms.layout.piece_size > 0
        and 0 < terms.layout.count <= _MOST_PIECES
        and terms.seed >= 0
        and 0 <= terms.hold <= 60
        and 0 < terms.patience <= 600
        and terms.lasts > 0
        and len(terms.accept) >= _SHORTEST_ACCEPT_KEY
    )
    if not sane:
        raise BadTerms("the transfer's swarm block has values out of range")
    return terms


def _text_or_none(value: object) -> str | None:
    return str(value) if value else None


def _peer(peer: Mapping[str, Any]) -> PeerTerms:
    at = tuple(_address(address) for address in peer["at"])
    return PeerTerms(str(peer["id"]), at, str(peer["pin"]), str(peer["token"]), bool(peer["near"]))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def authorization(caller: str, token: str) -> str:
    """Returns the Authorization header with which an agent calls another host."""
    return f"Swarm {encode(caller.encode())}.{token}"


def caller_of(authorization: str, swarm_id: str, accept: bytes) -> str | None:
    """Returns the agent id in an Authorization header.

    Returns None if the token in the header is not valid for this swarm and this host."""
    scheme, _, credentials = authorization.partition(" ")
    encoded_id, _, token = credentials.partition(".")
    if scheme != "Swarm" or not token:
        return None
    try:
        caller, presented = decode(encoded_id), decode(token)
        agent_id = caller.decode()
    except ValueError:
        return None
    expected = hmac.digest(accept, swarm_id.encode() + caller, "sha256")[:_TOKEN_BYTES]
    return agent_id if hmac.compare_digest(presented, expected) else None


def is_piece_list(content: bytes, terms: Terms) -> bool:
    """Returns whether this is the list of pieces that the terms name."""
    return hashlib.sha256(content).hexdigest() == terms.pieces_sha256


BUFFER_BYTES = 512 * 1024
# One read of a socket, and a TLS record that began in the read before. Before Python 3.11, TLS delivers all of it even
# after reading was paused.
_READ_BYTES = (256 + 16) * 1024


class Ended(Exception):
    """The other host closed the connection, or the connection broke."""


class Wire(asyncio.BufferedProtocol):
    """The receive buffer of a connection to another host.

    TLS decrypts into this buffer, and chunks go from it to disk without a copy. A chunk that `borrow` returned must be
    given back before the next call of `borrow` or `more`, which may use its part of the buffer again."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES + _READ_BYTES))
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._end >= BUFFER_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- called by the reader

    @property
    def waiting(self) -> int:
        """The number of bytes that have arrived and were not read yet."""
        return self._end - self._start

    @property
    def is_open(self) -> bool:
        return not self._ended

    def send(self, content: bytes) -> None:
        if self._transport is None or self._ended:
            raise Ended
        self._transport.write(content)

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def certificate(self) -> bytes | None:
        """Returns the other host's certificate, in DER."""
        if self._transport is None:
            return None
        found: bytes | None = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def more(self) -> None:
        """Waits until more bytes arrive. Raises Ended if the connection has ended."""
        if self._ended:
            raise Ended
        self._make_room()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def until(self, mark: bytes, most: int) -> bytes:
        """Returns everything up to and including `mark`. Raises Ended if `mark` is not within the next `most` bytes."""
        while True:
            found = bytes(self._buffer[self._start : min(self._end, self._start + most)])
            at = found.find(mark)
            if at >= 0:
                self.give_back(at + len(mark))
                return found[: at + len(mark)]
            if len(found) >= most:
                raise Ended
            await self.more()

    async def exactly(self, length: int) -> bytes:
        while self.waiting < length:
            await self.more()
        found = bytes(self._buffer[self._start : self._start + length])
        self.give_back(length)
        return found

    def borrow(self, most: int) -> memoryview:
        """Returns the bytes that have arrived, but not more than `most`. They stay in the buffer until `give_back`."""
        return self._buffer[self._start : min(self._end, self._start + most)]

    def give_back(self, length: int) -> None:
        self._start += length
        self._make_room()

    def _make_room(self) -> None:
        """Frees space in the buffer.

        Call it only while no chunk is borrowed, because it may move the bytes in the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._paused and self._start:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        if self._paused and self._end < BUFFER_BYTES and self._transport is not None:
            self._paused = False
            # Nothing is left to read once the connection is lost.
            with contextlib.suppress(ConnectionResetError), lost_connections():
                self._transport.resume_reading()
