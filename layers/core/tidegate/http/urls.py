"""URLs that callers name, read and refused before anything is opened."""

from __future__ import annotations

from urllib.parse import urljoin

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from tidegate.errors import UrlNotAllowed
from tidegate.http.credentials import origin


def read_url(url: str) -> Url:
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise UrlNotAllowed("A URL has no spaces or control characters")
    try:
        parsed = parse_url(url)
    except LocationParseError:
        raise UrlNotAllowed("The URL cannot be read") from None
    if parsed.scheme not in {"http", "https"}:
        raise UrlNotAllowed("Only http and https are fetched")
    if not parsed.host or "%" in parsed.host or parsed.auth:
        raise UrlNotAllowed("A URL names a host, without a zone or credentials")
    try:
        # As the resolver does it: a label may be neither empty nor over 63 characters.
        parsed.host.encode("idna")
    except UnicodeError:
        raise UrlNotAllowed("The URL's host is not a name") from None
    return parsed._replace(fragment=None)


def joined(here: Url, location: str) -> str:
    try:
        return urljoin(here.url, location)
    except ValueError:
        raise UrlNotAllowed("The redirect's URL cannot be read") from None


def host_of(url: Url) -> str:
    return (url.host or "").strip("[]")


def port_of(url: Url) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def origin_of(url: Url) -> str:
    return origin(url.scheme or "", host_of(url), port_of(url))
