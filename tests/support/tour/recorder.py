"""Calls the API and records the calls as the reference prints them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from tests.support.moto.cloud import MotoCloud

Call = dict[str, Any]
# The examples show this address in place of a server on this machine.
SHOP = "https://shop.example"
_PARAMETER = re.compile(r"\{(\w+)\}")
_LOCAL = re.compile(r"http://127\.0\.0\.1:\d+")
_PRESIGNED = re.compile(r"(https://[^\s?]+)\?[^\s\"]*(?:X-Amz-Signature|Signature)=[^\s\"]*")
_SECRET = re.compile(r"\b(tga?_[A-Za-z0-9]+_|tge_[A-Za-z0-9]*_?|whsec_)[A-Za-z0-9+/=_-]{12,}")


class Recorder:
    def __init__(self, cloud: MotoCloud) -> None:
        self.cloud = cloud
        self.calls: list[Call] = []

    def call(
        self,
        operation: str,
        request: Any = None,
        *,
        key: str | None,
        status: int = 200,
        query: dict[str, Any] | None = None,
        **path: Any,
    ) -> Any:
        """Returns the JSON of the response; an operation is `METHOD /path/{parameter}`."""
        method, _, pattern = operation.partition(" ")
        address = _PARAMETER.sub(lambda found: quote(str(path[found[1]]), safe=""), pattern)
        answer = self.cloud.http(method, address, json=request, key=key, query=query)
        # Distinct times, so that the newest record is the same in every run.
        self.cloud.clock.advance(1)
        assert answer.status == status, (operation, answer.status, answer.body[:600])
        call: Call = {"method": method, "path": pattern, "status": status}
        call |= {"in_path": path} if path else {}
        call |= {"query": query} if query else {}
        call |= {"request": request} if request is not None else {}
        is_json = answer.headers.get("content-type") == "application/json"
        content = answer.json() if is_json and answer.body else None
        call |= {"answer": content} if content is not None else {}
        self.calls.append(call)
        return content

    def printed(self) -> list[Call]:
        """Returns the calls as printed: without secrets, signatures and local addresses, lists cut to three entries."""
        return [_printed(call) for call in self.calls]


def _printed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _printed(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_printed(entry) for entry in value[:3]]
    if not isinstance(value, str):
        return value
    value = _LOCAL.sub(SHOP, value)
    value = _PRESIGNED.sub(r"\1?X-Amz-Signature=…", value)
    return _SECRET.sub(r"\1…", value)


def shape(value: Any) -> Any:
    """Returns what two runs of one call have in common: fields and their types, without ids, times and sizes."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return _common([shape(entry) for entry in value])
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"


def _common(entries: list[Any]) -> Any:
    """Returns the fields that all entries of a list share, since the order of entries may differ between runs."""
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return entries[:1]
    first, *others = entries
    fields = {name: kind for name, kind in first.items() if kind is not None}
    return {name: kind for name, kind in fields.items() if all(other.get(name) == kind for other in others)}
