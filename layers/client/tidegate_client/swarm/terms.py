"""The swarm block of a transfer: what a host needs to know about its swarm, and the tokens that peers call with."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_client.swarm.layout import Layout

_ID = re.compile(r"[0-9a-f]{32}")
_MOST_PEERS = 64
_MOST_PIECES = 1 << 20
_TOKEN_BYTES = 16
# With a shorter key strangers could guess tokens.
_SHORTEST_ACCEPT_KEY = 16


class BadTerms(ValueError):
    """This agent cannot use the swarm block, so it downloads the file from S3."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """A neighbour: its addresses, the SHA-256 of its certificate (`pin`) and the token to call it with."""

    id: str
    at: tuple[tuple[str, int], ...]
    pin: str
    token: str
    near: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """Times are in seconds by the server's clock: `age` since dispatch, `lasts` until the Job's deadline."""

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
    """Parses the swarm block of a transfer of `size` bytes. Raises BadTerms."""
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
    """The Authorization header with which an agent calls a peer."""
    return f"Swarm {encode(caller.encode())}.{token}"


def caller_of(authorization: str, swarm_id: str, accept: bytes) -> str | None:
    """The agent id in an Authorization header; None unless its token is valid for this swarm and this host."""
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
    return hashlib.sha256(content).hexdigest() == terms.pieces_sha256
