"""Which addresses a caller's URL may reach."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from tidegate.errors import UrlNotAllowed
from tidegate.http.names import NameLookups, Resolver, resolve

Address = IPv4Address | IPv6Address

_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_UNIQUE_LOCAL_V6 = IPv6Network("fc00::/7")
# `is_global` counts these as public, but they relay to other addresses or are for documentation.
_NOT_PUBLIC = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
# Link-local addresses and the metadata services of clouds, which give credentials to anyone: refused for every project.
_NEVER = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("100.100.100.200/32"),
    IPv4Network("168.63.129.16/32"),
    IPv4Network("192.0.0.192/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::/32"),
)
# IPv6 networks whose addresses embed an IPv4 address, and by how many bits it is shifted.
_MAPPED = IPv6Network("::ffff:0:0/96")
_HIDING = (
    (_MAPPED, 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("64:ff9b:1::/48"), 0),
    (IPv6Network("2002::/16"), 80),
)
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x00005EFE, 0x02005EFE)
_ALL_BITS = 0xFFFFFFFF
# Lambda's control endpoint: whoever can read it receives other callers' invocations.
RUNTIME_API_PORT = 9001


def hidden(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address embeds: mapped, compatible, NAT64, 6to4, Teredo, ISATAP."""
    bits = int(address)
    # Not `is_loopback`: from Python 3.13 on, it looks at the IPv4 address inside a mapped one.
    if isinstance(address, IPv4Address) or bits in (0, 1):
        return ()
    if address in _TEREDO:
        return IPv4Address(bits >> 64 & _ALL_BITS), IPv4Address(bits & _ALL_BITS ^ _ALL_BITS)
    found = [IPv4Address(bits >> shift & _ALL_BITS) for network, shift in _HIDING if address in network]
    if bits >> 32 & _ALL_BITS in _ISATAP:
        found.append(IPv4Address(bits & _ALL_BITS))
    return tuple(found)


def is_forbidden(address: Address) -> bool:
    """Refused for every project, even one with private URLs, and for hosts of the allow list too."""
    return any(
        one.is_multicast or one.is_unspecified or one.is_link_local or any(one in network for network in _NEVER)
        for one in (address, *hidden(address))
    )


def is_loopback(address: Address) -> bool:
    return any(one.is_loopback for one in (address, *hidden(address)))


def is_public(address: Address) -> bool:
    if is_forbidden(address) or hidden(address) or not address.is_global:
        return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST_V6


def is_private_network(address: Address) -> bool:
    """Public or private addresses, but none that embeds another address or serves credentials."""
    if is_forbidden(address) or hidden(address):
        return False
    if isinstance(address, IPv4Address):
        return not address.is_reserved
    return address.is_loopback or address in _GLOBAL_UNICAST_V6 or address in _UNIQUE_LOCAL_V6


class AddressGuard:
    """Resolves a name and returns its addresses, or refuses if one of them may not be reached."""

    def __init__(
        self,
        resolver: Resolver = resolve,
        allowed_hosts: Iterable[str] = (),
        refused_endpoints: Iterable[str] = (),
        *,
        loopback: bool = True,
    ) -> None:
        """`loopback`: whether private URLs may reach this machine itself. In Lambda they may not."""
        self._names = NameLookups(resolver)
        self._allowed = frozenset(_plain(host) for host in allowed_hosts if host.strip())
        self._refused = frozenset(refused_endpoints)
        self._runtime_ports = {RUNTIME_API_PORT, *_loopback_ports(self._refused)}
        self._loopback = loopback

    def addresses(
        self, host: str, port: int, *, allow_private: bool, timeout: float, project_id: str = ""
    ) -> list[str]:
        """UrlNotAllowed if any of its addresses may not be reached, socket.gaierror if it has none."""
        found = self._names.find(host, port, timeout, project_id)
        if refused := self._check(host, port, found, allow_private=allow_private):
            raise refused
        return list(found)

    def refusals(
        self, names: Iterable[tuple[str, int]], *, allow_private: bool, timeout: float, project_id: str
    ) -> dict[tuple[str, int], UrlNotAllowed]:
        """Those (host, port) pairs that may not be reached, as far as they are resolved in time."""
        found = self._names.find_many(names, timeout, project_id)
        checked = {name: self._check(*name, texts, allow_private=allow_private) for name, texts in found.items()}
        return {name: refused for name, refused in checked.items() if refused}

    def _check(self, host: str, port: int, found: Iterable[str], *, allow_private: bool) -> UrlNotAllowed | None:
        for text in found:
            if not self._may_reach(host, text, port, allow_private=allow_private):
                return UrlNotAllowed(self._refusal(host, text, port, allow_private=allow_private))
        return None

    def _may_reach(self, host: str, text: str, port: int, *, allow_private: bool) -> bool:
        address = _parsed(text)
        if is_forbidden(address) or self._is_runtime_api(address, port):
            return False
        if _plain(host) in self._allowed:
            return True
        if not allow_private:
            return is_public(address)
        return is_private_network(address) and (self._loopback or not address.is_loopback)

    def _refusal(self, host: str, text: str, port: int, *, allow_private: bool) -> str:
        """Why the address is refused, and what to do about it."""
        if not allow_private and self._may_reach(host, text, port, allow_private=True):
            return (
                f"{host} has the private address {text}: an admin can allow such addresses for this project with "
                "allow_private_urls (PATCH /v1/projects/{project_id}, tidegate project update PROJECT "
                "--allow-private-urls), or an operator can add the host to UrlAllowList"
            )
        return f"{host} has the address {text}, which no project may reach: use a host with a public address"

    def _is_runtime_api(self, address: Address, port: int) -> bool:
        if is_loopback(address):
            # It may listen on any loopback address, so its port is refused on all of them.
            return port in self._runtime_ports
        return any(f"{one}:{port}" in self._refused for one in (address, *hidden(address)))


def _loopback_ports(endpoints: Iterable[str]) -> set[int]:
    split = [endpoint.rpartition(":") for endpoint in endpoints]
    return {int(port) for host, _, port in split if port.isdigit() and _is_this_machine(host)}


def _is_this_machine(host: str) -> bool:
    try:
        return is_loopback(ip_address(host.strip("[]")))
    except ValueError:
        return _plain(host) == "localhost"


def _plain(host: str) -> str:
    return host.strip().rstrip(".").lower()


def _parsed(text: str) -> Address:
    return ip_address(text.split("%", 1)[0])
