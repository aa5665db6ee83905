"""The request's body as text, or the reason why it cannot be one."""

from __future__ import annotations

import base64
from typing import Any

from tidegate.common.json_input import read_json
from tidegate.errors import BodyTooLarge, BrokenJson

BODY_LIMIT = 1024 * 1024


def text_body(event: dict[str, Any]) -> str:
    """A gateway hands over as base64 what it does not take for text."""
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body).decode()
        except ValueError as error:
            raise BrokenJson("the body is not UTF-8") from error
    if len(body.encode("utf-8", "surrogatepass")) > BODY_LIMIT:
        raise BodyTooLarge("a body may hold 1 MB; larger data goes by a file or a source_url")
    if body:
        _refuse_what_json_cannot_say(body)
    return str(body)


def _refuse_what_json_cannot_say(body: str) -> None:
    try:
        read_json(body, exact=True)
    except ValueError as error:
        raise BrokenJson("the body could not be read as JSON") from error
