"""Headers that authenticate to a source, and the origins they may be sent to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidegate.errors import CredentialElsewhere, Invalid

_ORIGIN = re.compile(r"(https?)://([a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?/?")
_PORTS = {"https": 443, "http": 80}


def read_origin(text: str) -> str:
    """The origin as `https://host:port`, the form in which origins are compared. ValueError if it is not an origin."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        raise ValueError(f"{text[:300]!r} is not an origin: write https://host or https://host:port, without a path")
    scheme, host, given = found.groups()
    port = int(given) if given else _PORTS[scheme]
    if not 0 < port < 65536:
        raise ValueError(f"{port} is not a port: write a number from 1 to 65535")
    return origin(scheme, host, port)


def origin(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{host.strip('[]').lower()}:{port}"


def check_origins(origins: Sequence[str], *, plain_text: bool) -> None:
    """Raises Invalid for an http origin, unless `plain_text` allows it."""
    bad = [each for each in origins if each.startswith("http:") and not plain_text]
    if bad:
        message = f"the headers would be sent unencrypted to {bad[0]}: use https, or a project with allow_private_urls"
        raise Invalid(message, errors=[{"loc": ["body", "origins"], "msg": message}])


@dataclass(frozen=True, slots=True)
class Credential:
    """`origins` are as `read_origin` returns them. Printing or logging it shows no header."""

    name: str
    headers: Mapping[str, str]
    origins: frozenset[str]

    def __repr__(self) -> str:
        return f"Credential({self.name!r})"

    def require(self, url: str, *, plain_text: bool) -> None:
        """CredentialElsewhere if the credential may not be sent to the URL."""
        origin = _origin_of(url)
        if self.headers_for(origin, plain_text=plain_text):
            return
        if origin in self.origins:
            raise CredentialElsewhere(
                f"the credential {self.name} would be sent unencrypted to {origin}: use https, or allow_private_urls "
                "for this project"
            )
        raise CredentialElsewhere(
            f"the credential {self.name} is not for {origin}: add this origin to it with "
            f"PUT /v1/credentials/{self.name}, or name another credential"
        )

    def headers_for(self, origin: str, *, plain_text: bool) -> Mapping[str, str]:
        """All headers, or none if they may not be sent there. `plain_text`: whether http origins are allowed."""
        if origin not in self.origins or (origin.startswith("http:") and not plain_text):
            return {}
        return self.headers


def _origin_of(url: str) -> str:
    """For the error text only. Where headers are really sent is decided when the request is made."""
    try:
        named = urlsplit(url)
        return origin(named.scheme, named.hostname or "", named.port or _PORTS.get(named.scheme, 0))
    except ValueError:
        return url[:300]
