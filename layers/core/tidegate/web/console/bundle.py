"""Console and docs as a browser gets them: modules joined into one script, named by content, compressed once.

The page is a tree of small ES modules. Sent one by one they would each be an invocation, and on a cold start each
its own cold start; joined they are two requests. What is joined is only text that this module can prove simple:
one-line named imports, named exports of declarations.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parent
ENTRY = "js/main.js"
_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "([\w./-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


@dataclass(frozen=True)
class Asset:
    content_type: str
    text: str
    lasting: bool = True

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def packed(self) -> str:
        """Compressed, and as the text that a function can answer."""
        return base64.b64encode(gzip.compress(self.text.encode(), 9, mtime=0)).decode()


@dataclass(frozen=True)
class Bundle:
    page: Asset
    docs: Asset
    start: Asset
    assets: dict[str, Asset]


@cache
def console() -> Bundle:
    styles = "".join(path.read_text("utf-8") for path in sorted((ROOT / "css").glob("*.css")))
    named = {
        "app.js": Asset(_SCRIPT, join_modules(ROOT, ENTRY)),
        "app.css": Asset(_STYLE, styles),
        "app.svg": Asset("image/svg+xml", _text("icon.svg")),
        "docs.js": Asset(_SCRIPT, join_modules(ROOT, "docs/main.js")),
        "start.js": Asset(_SCRIPT, join_modules(ROOT, "docs/start.js")),
        "docs.css": Asset(_STYLE, _text("css/1-tokens.css") + _text("docs/docs.css")),
    }
    lasting = {name: name.replace(".", f".{asset.digest}.") for name, asset in named.items()}
    assets = {lasting[name]: asset for name, asset in named.items()}
    page, docs, start = (_page(name, lasting) for name in ("index.html", "docs/index.html", "docs/start.html"))
    return Bundle(page, docs, start, assets)


def _text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _page(name: str, lasting: dict[str, str]) -> Asset:
    page = _text(name)
    for plain, by_content in lasting.items():
        page = page.replace(f'"console/{plain}"', f'"console/{by_content}"')
    return Asset("text/html; charset=utf-8", page, lasting=False)


def join_modules(root: Path, entry: str) -> str:
    """One script in which each module is a function called once, those it imports before it."""
    done: dict[str, str] = {}
    _join(root, entry, done, ())
    return '"use strict";\nconst modules = {};\n' + "".join(done.values())


def _join(root: Path, name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other: {' → '.join((*above, name))}")
    if name in done:
        return
    text = (root / name).read_text("utf-8")
    folder = posixpath.dirname(name)
    for _, target in _IMPORT.findall(text):
        _join(root, posixpath.normpath(posixpath.join(folder, target)), done, (*above, name))

    def bound(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        return f'const {{ {match[1].replace(" as ", ": ")} }} = modules["{target}"];'

    body = _EXPORT.sub("", _IMPORT.sub(bound, text))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{name} imports or exports in a form that cannot be joined")
    exported = ", ".join(_EXPORT.findall(text))
    done[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n'
