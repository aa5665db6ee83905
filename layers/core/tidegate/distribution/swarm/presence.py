"""The presence of agents: their site, and the addresses at which peers reach them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LASTS_SECONDS = 2 * 3600
SMALLEST_PORT, LARGEST_PORT = 1024, 65535
# Addresses that only hosts of the same owner reach. Not loopback, which is a different host for everyone.
PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")


@dataclass(frozen=True, slots=True)
class Presence:
    """What an agent reports. `reached`: a peer connected recently, or none had a reason to."""

    agent_id: str
    site: str
    zone: str
    listen: tuple[str, ...]
    pin: str
    upload_mbit: float | None = None
    reached: bool = True


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """A project's settings: whether to use swarms, the networks of peers, and sites that S3 serves for free."""

    swarm: str = "auto"
    peer_networks: tuple[str, ...] = ()
    free_sites: tuple[str, ...] = ()

    @property
    def enabled(self) -> bool:
        return self.swarm != "off"


def network_fault(given: str) -> str | None:
    """Why the text is not a network; None if it is one."""
    try:
        ipaddress.ip_network(given)
    except ValueError as error:
        return f"{error}: write a network such as 10.0.0.0/8"
    return None


def address_fault(address: str, networks: Iterable[str], source: str) -> str | None:
    """Why an address cannot be given to peers; None if it can. `source`: the address of the agent's request."""
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return f"{address!r} is not an IP address and a port, as in 10.1.2.3:7471 or [2001:db8::3]:7471"
    if not port.isascii() or not port.isdigit() or not SMALLEST_PORT <= int(port) <= LARGEST_PORT:
        return f"the port of {address!r} is not allowed: use one from {SMALLEST_PORT} to {LARGEST_PORT}"
    if str(ip) == source or any(_holds(network, ip) for network in networks):
        return None
    return (
        f"{ip} is in none of the project's peer_networks ({', '.join(networks)}), and the request did not come from it:"
        " listen at another address, or ask an admin to add its network"
    )


def _holds(network: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    known = ipaddress.ip_network(network)
    return known.version == ip.version and ip in known
