"""Decodes a list with its real encoding, and repairs common faults of XML feeds."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from html.entities import html5

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# How "<" and "<?" begin in encodings of more than one byte a character, without a byte order mark.
_STARTS = (
    (b"<\0\0\0", "utf-32-le"),
    (b"\0\0\0<", "utf-32-be"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_EBCDIC = "<?xml".encode("cp037")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.I)
_DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})["']""")
# Slow on large input, or not used for documents.
_NOT_OF_DOCUMENTS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"})

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_KEPT_AS_IS = re.compile(r"<!--|<!\[CDATA\[")
_DECLARED_PREFIX = re.compile(r"\sxmlns:([A-Za-z_][\w.-]*)\s*=")
_REFERENCE = re.compile(r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{0,31});)?")
_OF_XML = frozenset({"amp", "lt", "gt", "quot", "apos"})
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG_NAME = re.compile(r"</?([A-Za-z_][\w.-]*):|\s([A-Za-z_][\w.-]*):[\w.-]+\s*=")
_CUT_END_TAG = re.compile(r"(</[\w:.-]+)\s*\Z")
_ROOT = re.compile(r"<(?![?!])[^\s/>]+")


def decoded(body: bytes, content_type: str = "") -> str:
    """The text, decoded by its byte order mark, the header's charset or the XML declaration; else UTF-8 or cp1252."""
    for name in _candidates(body, content_type):
        try:
            found = codecs.lookup(name)
            if found.name not in _NOT_OF_DOCUMENTS:
                return body.decode(found.name).removeprefix("\ufeff")
        except (LookupError, ValueError):
            continue
    return body.decode("cp1252", "replace")


def _candidates(body: bytes, content_type: str) -> Iterator[str]:
    yield from (name for mark, name in _BOMS if body.startswith(mark))
    start = body[:64].lstrip()
    yield from (name for mark, name in _STARTS if start.startswith(mark))
    header = _CHARSET.search(content_type)
    if header:
        yield header[1]
    # All EBCDIC code pages encode the letters of the declaration in the same way.
    opening = body[:200].decode("cp037").encode() if start.startswith(_EBCDIC) else body[:1024]
    declared = _DECLARED.search(opening)
    if declared:
        yield declared[1].decode("ascii")
    yield "utf-8"


def without_declaration(text: str) -> str:
    """The XML without its declaration: blank lines before `<?xml` are common, and the parser refuses them."""
    found = _DECLARATION.match(text)
    return text[found.end() :] if found else text.lstrip()


def mended(text: str) -> str:
    """Repairs the most common faults: HTML entities, a bare `&`, control characters, undeclared prefixes, a missing
    last `>`. The parser refuses what is still not XML."""
    text = _CUT_END_TAG.sub(r"\1>", _NOT_IN_XML.sub("", text))
    return _with_prefixes("".join(_with_references(text)))


def _with_references(text: str) -> Iterator[str]:
    """Leaves comments and CDATA sections alone. Takes linear time, for hostile text too."""
    place = 0
    while found := _KEPT_AS_IS.search(text, place):
        end = text.find("-->" if found[0] == "<!--" else "]]>", found.end())
        if end < 0:
            break
        yield _REFERENCE.sub(_reference, text[place : found.start()])
        yield text[found.start() : end + 3]
        place = end + 3
    yield _REFERENCE.sub(_reference, text[place:])


def _reference(found: re.Match[str]) -> str:
    name = found[1]
    if name is None:
        return found[0].replace("X", "x", 1) if len(found[0]) > 1 else "&amp;"
    if name in _OF_XML:
        return found[0]
    known = html5.get(f"{name};")
    return "".join(f"&#{ord(char)};" for char in known) if known else f"&amp;{name};"


def _with_prefixes(text: str) -> str:
    used = {found[1] or found[2] for found in _TAG_NAME.finditer(text)} - {"xml", "xmlns"}
    missing = sorted(used - {found[1] for found in _DECLARED_PREFIX.finditer(text)})
    root = _ROOT.search(text)
    if not missing or not root:
        return text
    declared = "".join(f' xmlns:{name}="urn:undeclared:{name}"' for name in missing[:50])
    return text[: root.end()] + declared + text[root.end() :]
