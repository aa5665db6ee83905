"""Where the bytes of a Job came from, as its hosts report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class SwarmFigures:
    """`fallbacks` counts hosts that fetched pieces from S3 which peers should have sent, `fallback_reasons` counts them
    by reason. `bad_peers` sent bad pieces. `reused_bytes` were found in older versions on the hosts."""

    origin_bytes: int = 0
    peer_bytes: int = 0
    bad_pieces: int = 0
    fallbacks: int = 0
    hosts: int = 0
    bad_peers: tuple[str, ...] = ()
    reused_bytes: int = 0
    fallback_reasons: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: SwarmFigures) -> SwarmFigures:
        named = sorted({*self.bad_peers, *other.bad_peers})[:MOST_NAMED]
        return SwarmFigures(
            self.origin_bytes + other.origin_bytes,
            self.peer_bytes + other.peer_bytes,
            self.bad_pieces + other.bad_pieces,
            self.fallbacks + other.fallbacks,
            self.hosts + other.hosts,
            tuple(named),
            self.reused_bytes + other.reused_bytes,
            dict(Counter(self.fallback_reasons) + Counter(other.fallback_reasons)),
        )

    def stored(self) -> dict[str, Any]:
        return asdict(self) | {"bad_peers": list(self.bad_peers)}

    def shown(self, file_size: int | None = None) -> dict[str, Any]:
        """As the API shows them. `egress`: the bytes sent by S3, in file sizes."""
        return self.stored() | ({"egress": round(self.origin_bytes / file_size, 2)} if file_size else {})


NO_FIGURES = SwarmFigures()


def figures_from(stored: Mapping[str, Any] | None) -> SwarmFigures:
    """The stored figures. Ignores fields of later versions."""
    if not stored:
        return NO_FIGURES
    fields = {name: value for name, value in stored.items() if name in SwarmFigures.__slots__}
    return SwarmFigures(**fields | {"bad_peers": tuple(stored.get("bad_peers", ()))})
