"""Checksum lists such as SHA256SUMS: a digest and a file name on each line, as coreutils and BSD write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from tidegate.errors import SourceBroken
from tidegate.ingest.feeds.entry import Entry, entry_at, sha256_in

_COREUTILS = re.compile(r"\\?([0-9a-fA-F]{32,128}) [ *](.+)")
_BSD = re.compile(r"[A-Z0-9-]+ \((.+)\) = ([0-9a-fA-F]{32,128})")


_SIGNED = "-----BEGIN PGP SIGNED MESSAGE-----"
_SIGNATURE = "-----BEGIN PGP SIGNATURE-----"


def _lines(text: str) -> list[str]:
    """The lines of the list; of a PGP clear-signed message, the lines inside. The signature is not verified."""
    lines = [line.rstrip("\r") for line in text.splitlines()]
    if not lines or lines[0].strip() != _SIGNED:
        return lines
    begins = lines.index("") if "" in lines else 0
    ends = lines.index(_SIGNATURE) if _SIGNATURE in lines else len(lines)
    return [line.removeprefix("- ") for line in lines[begins:ends]]


def looks_like_sums(text: str) -> bool:
    first = next((line for line in _lines(text) if line.strip() and not line.startswith("#")), "")
    return bool(_COREUTILS.fullmatch(first) or _BSD.fullmatch(first))


def from_sums(text: str, base: str) -> Iterator[Entry]:
    """A SHA-256 is verified when the file is downloaded; other digests only show that a file changed."""
    for number, line in enumerate(_lines(text), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _COREUTILS.fullmatch(line)
        bsd = _BSD.fullmatch(line)
        if not found and not bsd:
            raise SourceBroken(f"line {number} of the checksum list is not a digest and a file name: {line[:80]!r}")
        checksum, name = (found[1], found[2]) if found else (bsd[2], bsd[1])  # type: ignore[index]
        entry = entry_at(base, quote(name.removeprefix("./")), checksum, signature=sha256_in(checksum))
        if entry:
            yield entry
