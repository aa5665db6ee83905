"""Connection pools that use the proxies of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as curl and pip do."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib import request
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import urllib3
from urllib3.response import BaseHTTPResponse
from urllib3.util import make_headers

from tidegate_client.errors import ConfigError


class RoutingPool(urllib3.PoolManager):
    """Uses the proxy of the URL's scheme; connects directly to hosts of NO_PROXY and to this machine."""

    def __init__(self, proxies: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._no_proxy = {"no": proxies.get("no", "")}
        self._by_scheme = {
            scheme: _manager(proxies[scheme], options) for scheme in ("http", "https") if proxies.get(scheme)
        }

    def clear(self) -> None:
        super().clear()
        for manager in self._by_scheme.values():
            manager.clear()

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> BaseHTTPResponse:  # type: ignore[override]
        parts = urlsplit(url)
        proxy = self._by_scheme.get(parts.scheme)
        if proxy is None or _is_local(parts.hostname or "") or _bypassed(parts.netloc, self._no_proxy):
            return super().urlopen(method, url, redirect=redirect, **options)
        return proxy.urlopen(method, url, redirect=redirect, **options)


def make_pool(proxy: str | None = None, **options: Any) -> urllib3.PoolManager:
    """A pool that uses `proxy` for every URL, else the proxies of the environment, else none."""
    proxies = getproxies_environment()
    if proxy:
        proxies |= {"http": proxy, "https": proxy}
    if not proxies.get("http") and not proxies.get("https"):
        return urllib3.PoolManager(**options)
    return RoutingPool(proxies, **options)


def _manager(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(
            f"{parts.scheme}://{parts.hostname or ''} is not a proxy that can be used: give http://host:port or "
            "https://host:port, in --proxy, HTTPS_PROXY or HTTP_PROXY"
        )
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    headers = make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, **options)


def _bypassed(host: str, no_proxy: Mapping[str, str]) -> bool:
    # The function with which urllib itself reads NO_PROXY; it is missing in the type stubs.
    return bool(request.proxy_bypass_environment(host, no_proxy))  # type: ignore[attr-defined]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
