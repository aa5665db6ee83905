"""Odd ways to write a path, as a client would try them to get around the scopes of its key."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, unquote

_CONTROL = ("\n", "\r\n", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028")
_APPENDED = ("/", "//", "/.", "/..", "/../", ";x", "?", "#", "%20", "%3F", "%23", "%2F", "*", ".json", "%250A", "%2500")
# Bytes that a lax decoder reads as a slash or a line feed.
_OVERLONG = ("%C0%AF", "%E0%80%AF", "%C0%8A", "%E0%80%8A", "%F0%80%80%8A")


def _encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _as_sent(path: str) -> Iterator[str]:
    head, _, last = path.rpartition("/")
    for char in _CONTROL:
        yield from (path + char, path + _encoded(char), path + _encoded(char).lower())
        yield from (f"{head}/{char}{last}", f"{head}/{_encoded(char)}{last}", char + path, _encoded(char) + path)
    for tail in (*_APPENDED, *_OVERLONG):
        yield path + tail
    for gap in _OVERLONG:
        yield f"{head}{gap}{last}"
    yield from ("/" + path, path.replace("/", "//"), f"{head}//{last}")
    yield from (
        f"{head}/./{last}",
        f"{head}/x/../{last}",
        f"/v1/healthz/..{path}",
        f"/healthz/../..{path}",
        "/." + path,
    )
    yield from (
        f"{head}/{_encoded(last)}",
        "/" + _encoded(path[1:]),
        f"{head}%2F{last}",
        path.replace("/v1", "/%76%31"),
    )
    yield from (f"{head}/{quote(_encoded(last))}", quote(quote(path + "\n"), safe="/"), path + "%25250A")
    yield from (path.upper(), f"{head}/{last.upper()}", path.replace("/v1", "/V1"), "/$default" + path, "/prod" + path)
    yield from (path.encode("utf-16-le").decode("latin-1"), path.replace("/", "\\"), path.replace("/", "\uff0f"))


def odd_spellings(path: str) -> list[str]:
    """Returns odd spellings as sent and as a gateway that decodes paths passes them on, without the path itself."""
    sent = list(_as_sent(path))
    return [odd for odd in dict.fromkeys([*sent, *map(unquote, sent)]) if odd != path]
