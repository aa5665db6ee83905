"""Sends static files: compressed, with an ETag, and pages with a strict Content-Security-Policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aws_lambda_powertools.event_handler import Response

from tidegate.web.console.bundle import Asset
from tidegate.web.routing import Router

_YEAR, _MINUTE = 31_536_000, 60
_NONE: Mapping[str, str] = {}


def asset_response(router: Router, asset: Asset, more_headers: Mapping[str, str] = _NONE) -> Response[str]:
    """Returns the answer with a file: 304 if the browser has the file already, gzip if the browser accepts gzip."""
    request_headers = router.current_event.headers
    caching = f"public, max-age={_YEAR}, immutable" if asset.lasting else f"public, max-age={_MINUTE}, must-revalidate"
    headers: dict[str, str | list[str]] = {
        "etag": f'"{asset.digest}"',
        "cache-control": caching,
        "vary": "accept-encoding",
        **more_headers,
    }
    if asset.digest in (request_headers.get("if-none-match") or ""):
        return Response(status_code=304, headers=headers, body="")
    if not accepts_gzip(request_headers.get("accept-encoding") or ""):
        return Response(200, asset.content_type, asset.text, headers)
    response = Response(200, asset.content_type, asset.gzipped, {**headers, "content-encoding": "gzip"})
    response.base64_encoded = True
    return response


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether Accept-Encoding accepts gzip (RFC 9110).

    `gzip;q=0` refuses gzip. `*` stands for all codings that are not listed.
    """
    accepted: dict[str, bool] = {}
    for choice in accept_encoding.lower().split(","):
        name, _, weight = choice.partition(";")
        accepted[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return accepted.get("gzip", accepted.get("*", False))


def page_headers(connect_to: Iterable[str] = ()) -> dict[str, str]:
    """Returns the headers of a page. The page may load only its own files, and no other page may frame it.

    It may call only its own API and the origins in `connect_to`.
    """
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": " ".join(["'self'", *sorted(connect_to)]),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
    }
