"""Parses XML of strangers within limits. Entities are never expanded, nothing external is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import SourceBroken
from tidegate.ingest.feeds.entry import MAX_ENTRIES
from tidegate.ingest.feeds.text import mended, without_declaration

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element, TreeBuilder

# Fifty for each file. Each takes up to 400 bytes, so a page of nothing else would not fit into the memory.
_MOST_ELEMENTS = 50 * MAX_ENTRIES
# The parser copies the namespace for every element.
_LONG_NAMESPACE = re.compile(r"""\sxmlns(?::[^\s=]{1,100})?\s*=\s*(?:"[^"]{1000}|'[^']{1000})""")


def parsed(text: str) -> Element:
    """The root element. SourceBroken if the text is not XML, even when common faults are mended, or is refused."""
    text = without_declaration(text)
    try:
        return _strictly_parsed(text)
    except _Refused:
        raise
    except SourceBroken as error:
        # Of the original text, since that is what the source's owner can look at. The error itself is not kept,
        # because it holds everything that was parsed.
        detail = error.detail
    try:
        return _strictly_parsed(mended(text))
    except SourceBroken as error:
        raise SourceBroken(detail) from error


class _Refused(SourceBroken):
    """The XML would take too much memory or time. Mending it does not help."""


def _strictly_parsed(text: str) -> Element:
    # Imported here because only scans need it.
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import XMLParser

    if _LONG_NAMESPACE.search(text):
        raise _Refused("the XML has a namespace of more than 1,000 characters")
    parser = XMLParser(target=_limited_tree())
    parser.parser.AttlistDeclHandler = _refuse_defaults
    try:
        parser.feed(text)
        root: Element = parser.close()
    except DefusedXmlException as error:
        raise SourceBroken("the XML declares entities, which are not allowed: remove its DTD") from error
    except (ParseError, ValueError, LookupError) as error:
        raise SourceBroken(f"the XML is not well-formed: {str(error)[:100]}") from error
    return root


def _refuse_defaults(*_: object) -> None:
    """The parser would add the default of an attribute to each element: a long one, many times, fills the memory."""
    raise _Refused("the XML declares attributes, which is not allowed: remove its DTD")


def _limited_tree() -> TreeBuilder:
    from xml.etree.ElementTree import TreeBuilder

    class Limited(TreeBuilder):
        left = _MOST_ELEMENTS

        def start(self, tag: Any, attrs: dict[Any, Any], /) -> Element:
            self.left -= 1
            if self.left < 0:
                raise _Refused(f"the XML has more than {_MOST_ELEMENTS} elements: split it")
            return super().start(tag, attrs)

    return Limited()


def below(element: Element, stop: str) -> Iterator[Element]:
    """All elements below this one, in the order of the text, without those inside an element with the name `stop`.

    So elements of that name, nested in each other, are not visited once for each that contains them.
    """
    waiting = list(reversed(element))
    while waiting:
        found = waiting.pop()
        yield found
        if local(found).lower() != stop:
            waiting.extend(reversed(found))


def local(element: Element) -> str:
    """The element's name without its namespace: real feeds use the right one, an old one, or none."""
    return str(element.tag).rsplit("}", 1)[-1]
