"""How a file that is the same for everyone is sent: compressed, cached by content, and a page allowed only its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aws_lambda_powertools.event_handler import Response

from tidegate.web.console.bundle import Asset
from tidegate.web.routing import Router

_YEAR = 31_536_000
_NONE: Mapping[str, str] = {}


def sent(router: Router, asset: Asset, more: Mapping[str, str] = _NONE) -> Response[str]:
    asked = router.current_event.headers
    lasting = f"public, max-age={_YEAR}, immutable" if asset.lasting else "no-cache"
    headers: dict[str, str | list[str]] = {
        "etag": f'"{asset.digest}"',
        "cache-control": lasting,
        "vary": "accept-encoding",
        **more,
    }
    if asset.digest in (asked.get("if-none-match") or ""):
        return Response(status_code=304, headers=headers, body="")
    if not takes_gzip(asked.get("accept-encoding") or ""):
        return Response(200, asset.content_type, asset.text, headers)
    answer = Response(200, asset.content_type, asset.packed, {**headers, "content-encoding": "gzip"})
    answer.base64_encoded = True
    return answer


def takes_gzip(accepted: str) -> bool:
    """By RFC 9110: `gzip;q=0` is a refusal, and `*` speaks for what is not named."""
    weights: dict[str, bool] = {}
    for choice in accepted.lower().split(","):
        name, _, weight = choice.partition(";")
        weights[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return weights.get("gzip", weights.get("*", False))


def page_headers(reached: Iterable[str] = ()) -> dict[str, str]:
    """A page may use its own files and the API beside it, and what is named; nobody may frame it."""
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": " ".join(["'self'", *sorted(reached)]),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
    }
