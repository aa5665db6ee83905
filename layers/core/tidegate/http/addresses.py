"""Which addresses a caller's URL may reach."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from tidegate.errors import FetchTimeout, UrlNotAllowed

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Sequence[str]]

_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
# `is_global` calls these public; they carry or relay IPv4 addresses, or are for documentation.
_NOT_PUBLIC = (IPv4Network("192.88.99.0/24"), IPv6Network("2002::/16"), IPv6Network("3fff::/20"))
# Instance and task metadata: credentials live there, so even a project with private URLs is kept out.
_METADATA = (
    IPv4Network("169.254.0.0/16"),
    IPv4Network("100.100.100.200/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::/32"),
)


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: Address) -> bool:
    if address.is_multicast or not address.is_global or any(address in network for network in _NOT_PUBLIC):
        return False
    # Mapped, compatible and NAT64 forms of IPv4 all lie outside global unicast.
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST_V6


def is_private_network(address: Address) -> bool:
    """Public, or an address of one's own networks; nothing that hides another address or holds credentials."""
    if address.is_multicast or address.is_unspecified or any(address in network for network in _METADATA):
        return False
    if isinstance(address, IPv4Address):
        return not address.is_reserved
    return address.is_loopback or address in _GLOBAL_UNICAST_V6 or address in IPv6Network("fc00::/7")


class AddressGuard:
    """Resolves a name once and answers with addresses that may be connected to, or refuses."""

    def __init__(
        self,
        resolver: Resolver = resolve,
        allowed_hosts: Iterable[str] = (),
        refused_endpoints: Iterable[str] = (),
    ) -> None:
        self._resolver = resolver
        self._allowed = frozenset(_plain(host) for host in allowed_hosts)
        self._refused = frozenset(refused_endpoints)
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="resolve")

    def addresses(self, host: str, port: int, *, allow_private: bool, timeout: float) -> list[str]:
        """Raises UrlNotAllowed if any address is out of bounds, socket.gaierror if there is none."""
        # getaddrinfo knows no time-out, so it runs where its caller can stop waiting for it.
        pending = self._threads.submit(self._resolver, host, port)
        try:
            found = pending.result(timeout)
        except FutureTimeout:
            raise FetchTimeout(f"The name {host} was not resolved in time") from None
        if _plain(host) in self._allowed:
            return list(found)
        allowed = is_private_network if allow_private else is_public
        for text in found:
            if not allowed(_parsed(text)) or f"{text}:{port}" in self._refused:
                raise UrlNotAllowed(f"{host} is at {text}, which may not be reached")
        return list(found)


def _plain(host: str) -> str:
    return host.strip().rstrip(".").lower()


def _parsed(text: str) -> Address:
    return ip_address(text.split("%", 1)[0])
