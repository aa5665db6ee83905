"""The console's files as a browser gets them: modules joined into one script, named by content, compressed once.

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
    assets: dict[str, Asset]


@cache
def console() -> Bundle:
    styles = "".join(path.read_text("utf-8") for path in sorted((ROOT / "css").glob("*.css")))
    named = {
        "js": Asset("text/javascript; charset=utf-8", join_modules(ROOT, ENTRY)),
        "css": Asset("text/css; charset=utf-8", styles),
        "svg": Asset("image/svg+xml", (ROOT / "icon.svg").read_text("utf-8")),
    }
    assets = {f"app.{asset.digest}.{kind}": asset for kind, asset in named.items()}
    page = (ROOT / "index.html").read_text("utf-8")
    for name in assets:
        page = page.replace(f"console/app.{name.rsplit('.', 1)[1]}", f"console/{name}")
    return Bundle(Asset("text/html; charset=utf-8", page, lasting=False), assets)


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
