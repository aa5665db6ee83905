"""Decodes and checks the body of a request."""

from __future__ import annotations

import base64
from typing import Any

from tidegate.common.json_input import read_json
from tidegate.errors import BodyTooLarge, BrokenJson

BODY_LIMIT = 1024 * 1024


def text_body(event: dict[str, Any]) -> str:
    """The body as text; API Gateway encodes bodies that it does not recognise as text in base64.

    Raises BrokenJson or BodyTooLarge.
    """
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body).decode()
        except ValueError as error:
            raise BrokenJson("the body is not valid UTF-8: send JSON encoded in UTF-8") from error
    size = len(body.encode("utf-8", "surrogatepass"))
    if size > BODY_LIMIT:
        raise BodyTooLarge(
            f"the body has {size:,} bytes, but at most {BODY_LIMIT:,} are accepted: upload larger data as a file, or "
            "let it be pulled from a source_url"
        )
    if body:
        _require_json(body)
    return str(body)


def _require_json(body: str) -> None:
    try:
        read_json(body, exact=True)
    except ValueError as error:
        raise BrokenJson(f"the body is not valid JSON: {str(error).partition(';')[0][:200]}") from error
