"""Parses URLs that callers give, and refuses bad ones before anything is connected."""

from __future__ import annotations

from urllib.parse import urljoin

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from tidegate.errors import UrlNotAllowed
from tidegate.http.credentials import origin


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


def joined(here: Url, location: str) -> str:
    try:
        return urljoin(here.url, location)
    except ValueError:
        raise UrlNotAllowed(
            f"the server redirects to {location[:200]!r}, which is not a URL: its owner must correct that"
        ) from None


def host_of(url: Url) -> str:
    return (url.host or "").strip("[]")


def port_of(url: Url) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def origin_of(url: Url) -> str:
    return origin(url.scheme or "", host_of(url), port_of(url))
