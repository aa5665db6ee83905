"""Bundles the console and the docs page: ES modules joined into one script, named by a hash, compressed once.

If the many small modules were sent one by one, each would need an invocation, perhaps with a cold start. The bundler
understands only one-line named imports and named exports of declarations, and raises for anything else.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import posixpath
import re
import textwrap
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parent
ENTRY = "js/main.js"
_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
PROGRAMS = {
    "curl": "start.sh",
    "python": "start.py.txt",
    "cli": "cli.sh",
    "php": "start.php",
    "typescript": "start.ts",
    "go": "start.go",
    "java": "Start.java",
}
# A comment that begins the next step of a program.
_STEP = re.compile(r"^\s*(?:#|//) step\n", re.MULTILINE)
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
    def gzipped(self) -> str:
        """The content as gzip in base64, the form in which a Lambda function returns bytes."""
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
        "start.js": Asset(_SCRIPT, _constant("PROGRAMS", programs()) + join_modules(ROOT, "docs/start.js")),
        "docs.css": Asset(_STYLE, _text("css/1-tokens.css") + _text("docs/docs.css")),
    }
    hashed_names = {name: name.replace(".", f".{asset.digest}.") for name, asset in named.items()}
    assets = {hashed_names[name]: asset for name, asset in named.items()}
    page, docs, start = (_page(name, hashed_names) for name in ("index.html", "docs/index.html", "docs/start.html"))
    return Bundle(page, docs, start, assets)


def programs() -> dict[str, list[str]]:
    """Returns the code of the getting-started steps by language.

    The steps of one language make a program that can be run.
    """
    texts = {language: _text(f"docs/start/{file}") for language, file in PROGRAMS.items()}
    parts = {language: _STEP.split(text)[1:] for language, text in texts.items()}
    return {language: [textwrap.dedent(part).strip("\n") for part in found] for language, found in parts.items()}


def _constant(name: str, value: object) -> str:
    return f"const {name} = {json.dumps(value)};\n"


def _text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _page(name: str, hashed_names: dict[str, str]) -> Asset:
    page = _text(name)
    for plain, hashed in hashed_names.items():
        page = page.replace(f'"console/{plain}"', f'"console/{hashed}"')
    return Asset("text/html; charset=utf-8", page, lasting=False)


def join_modules(root: Path, entry: str) -> str:
    """Returns one script that contains each module as a function.

    Each function is called once, after the functions of the modules that it imports.
    """
    joined: dict[str, str] = {}
    _join(root, entry, joined, ())
    return '"use strict";\nconst modules = {};\n' + "".join(joined.values())


def _join(root: Path, name: str, joined: dict[str, str], importers: tuple[str, ...]) -> None:
    if name in importers:
        raise ValueError(f"modules import each other: {' → '.join((*importers, name))}")
    if name in joined:
        return
    text = (root / name).read_text("utf-8")
    folder = posixpath.dirname(name)
    for _, target in _IMPORT.findall(text):
        _join(root, posixpath.normpath(posixpath.join(folder, target)), joined, (*importers, name))

    def as_constant(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        return f'const {{ {match[1].replace(" as ", ": ")} }} = modules["{target}"];'

    body = _EXPORT.sub("", _IMPORT.sub(as_constant, text))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{name} imports or exports in a form that cannot be joined")
    exported = ", ".join(_EXPORT.findall(text))
    joined[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n'
