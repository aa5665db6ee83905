"""What the API tells a host of its swarm, read from a transfer's `swarm`."""

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


class BadTerms(ValueError):
    """The swarm block is not one that this agent understands: it downloads directly."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    id: str
    at: tuple[tuple[str, int], ...]
    pin: str
    token: str
    near: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """Times are seconds. `age`: since dispatch; `lasts`: until the Job's deadline, both by the server's clock."""

    id: str
    number: int
    members: int
    seed: int
    age: float
    lasts: float
    layout: Layout
    pieces_sha256: str
    pieces_url: str
    # None if the library has no list of blocks: then nothing is taken from an older version.
    blocks_sha256: str | None
    blocks_url: str
    accept: bytes
    peers: tuple[PeerTerms, ...]
    ranks: int
    hold: float
    patience: float


def read_terms(given: Mapping[str, Any], size: int) -> Terms:
    try:
        terms = Terms(
            id=str(given["id"]),
            number=int(given["number"]),
            members=int(given["members"]),
            seed=int(given["seed"]),
            age=float(given["age"]),
            lasts=float(given["lasts"]),
            layout=Layout(size, int(given["piece_size"])),
            pieces_sha256=str(given["pieces_sha256"]),
            pieces_url=str(given["pieces_url"]),
            blocks_sha256=_text_or_none(given.get("blocks_sha256")),
            blocks_url=str(given.get("blocks_url") or ""),
            accept=decode(str(given["accept"])),
            peers=tuple(_peer(peer) for peer in given["peers"][:_MOST_PEERS]),
            ranks=int(given["ranks"]),
            hold=float(given["hold"]),
            patience=float(given["patience"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadTerms(f"the swarm block cannot be read: {error!r}") from error
    sane = (
        _ID.fullmatch(terms.id)
        and 0 <= terms.number < terms.members
        and terms.layout.piece_size > 0
        and 0 < terms.layout.count <= _MOST_PIECES
        and terms.seed >= 0
        and 0 <= terms.hold <= 60
        and 0 < terms.patience <= 600
        and terms.lasts > 0
    )
    if not sane:
        raise BadTerms("the swarm block's numbers make no sense")
    return terms


def _text_or_none(given: object) -> str | None:
    return str(given) if given else None


def _peer(given: Mapping[str, Any]) -> PeerTerms:
    at = tuple(_address(one) for one in given["at"])
    return PeerTerms(str(given["id"]), at, str(given["pin"]), str(given["token"]), bool(given["near"]))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def authorization(caller: str, token: str) -> str:
    return f"Swarm {encode(caller.encode())}.{token}"


def caller_of(authorization: str, swarm_id: str, accept: bytes) -> str | None:
    """The agent that this header proves to be calling; None if it proves nothing."""
    kind, _, rest = authorization.partition(" ")
    named, _, token = rest.partition(".")
    if kind != "Swarm" or not token:
        return None
    try:
        caller, given = decode(named), decode(token)
        name = caller.decode()
    except ValueError:
        return None
    right = hmac.digest(accept, swarm_id.encode() + caller, "sha256")[:_TOKEN_BYTES]
    return name if hmac.compare_digest(given, right) else None


def is_piece_list(listed: bytes, terms: Terms) -> bool:
    return hashlib.sha256(listed).hexdigest() == terms.pieces_sha256
