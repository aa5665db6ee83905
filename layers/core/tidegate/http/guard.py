"""Checks which URLs may be fetched, by their form and their addresses, and where credentials may be sent."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urljoin, urlsplit

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from tidegate.errors import CredentialElsewhere, FetchTimeout, Invalid, NotSent, UrlNotAllowed

# --- credentials
# Headers that authenticate to a source, and the origins they may be sent to.

_ORIGIN = re.compile(r"(https?)://([a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?/?")
_PORTS = {"https": 443, "http": 80}


def read_origin(text: str) -> str:
    """Returns an origin as `https://host:port`. Origins are compared in this form.

    ValueError if the text is not an origin.
    """
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
    """Headers for requests to certain origins only. If a Credential is logged, the log does not show its headers.

    The origins have the form that `read_origin` returns.
    """

    name: str
    headers: Mapping[str, str]
    origins: frozenset[str]

    def __repr__(self) -> str:
        return f"Credential({self.name!r})"

    def require(self, url: str, *, plain_text: bool) -> None:
        """Raises CredentialElsewhere if the credential may not be sent to the URL."""
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
        """Returns the headers for an origin. Empty if the headers may not be sent there.

        `plain_text`: whether they may also be sent to http origins.
        """
        if origin not in self.origins or (origin.startswith("http:") and not plain_text):
            return {}
        return self.headers


def _origin_of(url: str) -> str:
    """Returns the URL's origin for an error text. When the request is sent, its origin is read and checked again."""
    try:
        named = urlsplit(url)
        return origin(named.scheme, named.hostname or "", named.port or _PORTS.get(named.scheme, 0))
    except ValueError:
        return url[:300]


# --- urls
# Parses URLs that callers give, and refuses bad ones before anything is connected.


def read_url(url: str) -> Url:
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise UrlNotAllowed("the URL contains a space or a control character: percent-encode it")
    try:
        parsed = parse_url(url)
    except LocationParseError:
        raise UrlNotAllowed("the URL cannot be parsed: write http://host/path or https://host/path") from None
    if parsed.scheme not in {"http", "https"}:
        raise UrlNotAllowed("the URL must start with http:// or https://")
    if not parsed.host or "%" in parsed.host or parsed.auth:
        raise UrlNotAllowed(
            "the URL must have a host, without a zone (%) and without user:password@: "
            "store secrets with PUT /v1/credentials/{name}"
        )
    try:
        # The resolver does the same, and fails on a label that is empty or longer than 63 characters.
        parsed.host.encode("idna")
    except UnicodeError:
        raise UrlNotAllowed(
            "the host of the URL is not a valid name: each part between dots has 1 to 63 characters"
        ) from None
    return parsed._replace(fragment=None)


def redirect_url(here: Url, location: str) -> str:
    try:
        return urljoin(here.url, location)
    except ValueError:
        raise UrlNotAllowed(
            f"the server redirects to {location[:200]!r}, which is not a URL: its owner must correct that"
        ) from None


def host_of(url: Url) -> str:
    return (url.host or "").strip("[]")


def port_of(url: Url) -> int:
    return url.port or _PORTS[url.scheme or ""]


def sent_url(url: Url) -> str:
    """Returns the URL as its receiver sees it: without default port and fragment.

    Signatures cover this form of the URL.
    """
    port = f":{url.port}" if url.port and url.port != _PORTS[url.scheme or ""] else ""
    return f"{url.scheme}://{url.host}{port}{url.request_uri}"


@lru_cache(maxsize=1024)
def origin_of_text(url: str) -> str:
    return origin_of(read_url(url))


def origin_of(url: Url) -> str:
    return origin(url.scheme or "", host_of(url), port_of(url))


# --- names
# Resolves host names in threads, because getaddrinfo has no time-out.
#
# A slow name delays only the callers that ask for it: each name is looked up once at a time for all callers, and each
# project has a limited number of look-ups in progress, so that it cannot block those of others.

Resolver = Callable[[str, int], Sequence[str]]

LOOKUPS_PER_PROJECT = 8
LOOKUPS = 256


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_address(host: str) -> bool:
    """Whether the host is an address in any spelling that the resolver knows, such as 127.1, 0x7f.1 or ::1.

    Such a host is resolved at once, without a name server.
    """
    try:
        if ":" in host:
            IPv6Address(host)
        else:
            # As in getaddrinfo, which also accepts other digits than 0 to 9.
            socket.inet_aton(host.encode("idna").decode())
    except (OSError, ValueError):
        return False
    return True


class _Lookup:
    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        self.done = threading.Event()
        self.found: Sequence[str] = ()
        self.failure: Exception | None = None

    def run(self, resolver: Resolver, host: str, port: int) -> None:
        try:
            self.found = resolver(host, port)
        except Exception as error:
            self.failure = error


class NameLookups:
    def __init__(self, resolver: Resolver = resolve) -> None:
        self._resolver = resolver
        self._running: dict[tuple[str, int], _Lookup] = {}
        self._by_project: Counter[str] = Counter()
        self._ended = threading.Condition()

    def find(self, host: str, port: int, timeout: float, project_id: str = "") -> Sequence[str]:
        """Returns the addresses of a host. Raises FetchTimeout if the host's name is not resolved in time.

        Raises NotSent if the time is over before the look-up can start, because other names are being resolved.
        """
        until = time.monotonic() + timeout
        lookup = self._join(host, port, project_id, until)
        if not lookup.done.wait(max(0.0, until - time.monotonic())):
            raise FetchTimeout(f"the host name {host} was not resolved within {timeout:g} s")
        if lookup.failure:
            raise lookup.failure
        return lookup.found

    def find_many(
        self, names: Iterable[tuple[str, int]], timeout: float, project_id: str
    ) -> dict[tuple[str, int], Sequence[str]]:
        """Returns the addresses of those (host, port) pairs that are resolved in time.

        `timeout` is for all pairs together.
        """
        until = time.monotonic() + timeout
        lookups: dict[tuple[str, int], _Lookup] = {}
        found: dict[tuple[str, int], Sequence[str]] = {}
        with suppress(NotSent):
            for name in names:
                lookups[name] = self._join(*name, project_id, until)
        for name, lookup in lookups.items():
            if lookup.done.wait(max(0.0, until - time.monotonic())) and not lookup.failure:
                found[name] = lookup.found
        return found

    def _join(self, host: str, port: int, project_id: str, until: float) -> _Lookup:
        if is_address(host):
            lookup = _Lookup(project_id)
            lookup.run(self._resolver, host, port)
            lookup.done.set()
            return lookup
        with self._ended:
            while True:
                running = self._running.get((host, port))
                if running:
                    return running
                if self._by_project[project_id] < LOOKUPS_PER_PROJECT and len(self._running) < LOOKUPS:
                    return self._start(host, port, project_id)
                if not self._ended.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise NotSent(
                        f"the host name {host} was not looked up yet: {self._slow_names(project_id)}", retry_after=5
                    )

    def _start(self, host: str, port: int, project_id: str) -> _Lookup:
        lookup = self._running[host, port] = _Lookup(project_id)
        self._by_project[project_id] += 1
        try:
            # A daemon thread, so that a look-up that hangs does not keep the process alive.
            threading.Thread(target=self._run, args=(host, port, lookup), name=f"resolve {host}", daemon=True).start()
        except BaseException:
            self._forget(host, port, project_id)
            raise
        return lookup

    def _run(self, host: str, port: int, lookup: _Lookup) -> None:
        try:
            lookup.run(self._resolver, host, port)
        finally:
            with self._ended:
                self._forget(host, port, lookup.project_id)
                lookup.done.set()
                self._ended.notify_all()

    def _forget(self, host: str, port: int, project_id: str) -> None:
        del self._running[host, port]
        self._by_project[project_id] -= 1
        if not self._by_project[project_id]:
            del self._by_project[project_id]

    def _slow_names(self, project_id: str) -> str:
        hosts = [host for (host, _), lookup in self._running.items() if lookup.project_id == project_id]
        if len(hosts) < LOOKUPS_PER_PROJECT:
            return f"{len(self._running)} other names are still being resolved"
        return f"this project's other names are still being resolved ({', '.join(hosts[:3])}, …)"


# --- addresses
# Which addresses a caller's URL may reach.

Address = IPv4Address | IPv6Address

_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_UNIQUE_LOCAL_V6 = IPv6Network("fc00::/7")
# Addresses that are public for `is_global`, but relay to other addresses or are for documentation.
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


def embedded(address: Address) -> tuple[IPv4Address, ...]:
    """Returns the IPv4 addresses that an IPv6 address embeds: mapped, compatible, NAT64, 6to4, Teredo, ISATAP."""
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
    """Whether the address is refused for every project, even with private URLs and for hosts of the allow list."""
    return any(
        one.is_multicast or one.is_unspecified or one.is_link_local or any(one in network for network in _NEVER)
        for one in (address, *embedded(address))
    )


def is_loopback(address: Address) -> bool:
    return any(one.is_loopback for one in (address, *embedded(address)))


def is_public(address: Address) -> bool:
    if is_forbidden(address) or embedded(address) or not address.is_global:
        return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST_V6


def is_private_network(address: Address) -> bool:
    """Whether projects with private URLs may reach the address.

    They may not if the address embeds another address, or if `is_forbidden` refuses it.
    """
    if is_forbidden(address) or embedded(address):
        return False
    if isinstance(address, IPv4Address):
        return not address.is_reserved
    return address.is_loopback or address in _GLOBAL_UNICAST_V6 or address in _UNIQUE_LOCAL_V6


class AddressGuard:
    """Resolves names to addresses, and refuses a name if one of its addresses may not be reached."""

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
        """Returns the addresses of a host. Raises UrlNotAllowed if one of them may not be reached.

        Raises socket.gaierror if the host has no address.
        """
        found = self._names.find(host, port, timeout, project_id)
        if refused := self._check(host, port, found, allow_private=allow_private):
            raise refused
        return list(found)

    def refusals(
        self, names: Iterable[tuple[str, int]], *, allow_private: bool, timeout: float, project_id: str
    ) -> dict[tuple[str, int], UrlNotAllowed]:
        """Returns the error for each (host, port) pair that may not be reached.

        A pair that is not resolved in time has no error.
        """
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
        """Returns why the address is refused, and what to do about it."""
        if not allow_private and self._may_reach(host, text, port, allow_private=True):
            return (
                f"{host} has the private address {text}: an admin can allow such addresses for this project with "
                "allow_private_urls (PATCH /v1/projects/{project_id}, tidegate project update PROJECT "
                "--allow-private-urls), or an operator can add the host to UrlAllowList"
            )
        return f"{host} has the address {text}, which no project may reach: use a host with a public address"

    def _is_runtime_api(self, address: Address, port: int) -> bool:
        if is_loopback(address):
            # The runtime API may listen on any loopback address, so its port is refused on all of them.
            return port in self._runtime_ports
        return any(f"{one}:{port}" in self._refused for one in (address, *embedded(address)))


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


Name = tuple[str, int]

CHECK_SECONDS = 1.0
# After a wait of more than this share of the allowed time, no names of the project are looked up for a while.
_SLOW_SHARE = 0.5
SKIPPED_SECONDS = 30.0


class UrlCheck:
    """Checks URLs when they are submitted, so that the caller learns of a bad URL at once.

    A URL passes if its name is not resolved in time: each address is checked again when a connection is made. The wait
    for names is limited, because callers choose the names and the wait occupies a function of the API.
    """

    def __init__(self, guard: AddressGuard, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._slow_until: dict[str, float] = {}

    def refusals(
        self, urls: Iterable[str], *, allow_private: bool, project_id: str, seconds: float = CHECK_SECONDS
    ) -> dict[str, UrlNotAllowed]:
        """Returns the error for each URL whose fetch would be refused. Takes at most `seconds` for all of them."""
        refused: dict[str, UrlNotAllowed] = {}
        named: dict[str, Name] = {}
        for url in urls:
            try:
                parsed = read_url(url)
                named[url] = host_of(parsed), port_of(parsed)
            except UrlNotAllowed as error:
                refused[url] = error
        addresses = {name for name in named.values() if is_address(name[0])}
        others = set(named.values()) - addresses

        def check(names: set[Name]) -> dict[str, UrlNotAllowed]:
            found = self._guard.refusals(names, allow_private=allow_private, timeout=seconds, project_id=project_id)
            return {url: found[name] for url, name in named.items() if name in found}

        refused |= check(addresses)
        # If the request is refused anyway, do not wait for names.
        if refused or not others or self._is_skipped(project_id):
            return refused
        began = self._clock()
        refused = check(others)
        if self._clock() - began > seconds * _SLOW_SHARE:
            self._skip(project_id)
        return refused

    def _is_skipped(self, project_id: str) -> bool:
        return self._slow_until.get(project_id, 0.0) > self._clock()

    def _skip(self, project_id: str) -> None:
        now = self._clock()
        # A new dict, so that other threads can read the old one meanwhile.
        still = {project: until for project, until in self._slow_until.items() if until > now}
        self._slow_until = still | {project_id: now + SKIPPED_SECONDS}
