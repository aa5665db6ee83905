"""The console's page and files need no key, are small, cached by hash, and have a strict content security policy."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.web.console.bundle import ROOT, join_modules


def names(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="(console/[^"]+)"', page)


def test_page_and_its_files_need_no_key_and_are_relative(cloud: MotoCloud) -> None:
    page = cloud.http("GET", "/")

    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert len(names(page.body.decode())) == 3
    for name in names(page.body.decode()):
        assert cloud.http("GET", f"/{name}").status == 200
    assert cloud.http("GET", "/console/app.0.js").status == 404


def test_policy_allows_no_inline_code_and_no_third_party(cloud: MotoCloud) -> None:
    page = cloud.http("GET", "/")

    rules = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in str(rules)
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(rb"<script>|<style|style=|\son\w+=|//[a-z]", page.body)


def test_files_are_cached_forever_but_the_page_is_not(cloud: MotoCloud) -> None:
    page = cloud.http("GET", "/")
    script = cloud.http("GET", "/" + names(page.body.decode())[-1])

    assert page.headers["cache-control"] == "public, max-age=60, must-revalidate"
    assert "immutable" in script.headers["cache-control"]
    again = cloud.http("GET", "/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_files_of_the_page_are_gzipped_and_under_150_kb_together(cloud: MotoCloud) -> None:
    """As they travel. What /docs and /start load has a limit of its own, in test_docs."""
    gzipped = {"accept-encoding": "br, gzip"}
    plain = cloud.http("GET", "/")
    packed = cloud.http("GET", "/", headers=gzipped)

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    loaded = [cloud.http("GET", f"/{name}", headers=gzipped) for name in names(plain.body.decode())]
    assert {answer.status for answer in loaded} == {200}
    weight = sum(len(answer.body) for answer in (packed, *loaded))
    assert weight < 150_000


def test_me_shows_project_and_scopes_of_the_key(cloud: MotoCloud, project: Project) -> None:
    mine = cloud.http("GET", "/v1/me", key=project.key).json()

    assert mine["project_id"] == project.id
    assert mine["scopes"] == ["read", "write"]
    assert cloud.http("GET", "/v1/me", key=cloud.admin_key).json()["scopes"] == ["admin"]
    assert cloud.http("GET", "/v1/me").status == 401


def test_both_languages_have_every_text_of_the_console() -> None:
    english, chinese = texts("en"), texts("zh")
    used = set(re.findall(r'\bt\("([\w.]+)"', code()))

    assert english.keys() == chinese.keys()
    assert used
    assert used <= english.keys()


def test_values_in_texts_are_the_same_in_both_languages() -> None:
    english, chinese = texts("en"), texts("zh")

    different = [key for key in english if values_in(english[key]) != values_in(chinese[key])]
    assert different == []


def test_every_text_of_the_console_is_used() -> None:
    source = code()
    # Texts for values that the server returns.
    by_value = set(re.findall(r'\bnamed\("(\w+)"', source))
    # Keys that are put together, such as `live.${mode}Title`: the variable part is named elsewhere in the code.
    composed = [
        re.compile("(.+)".join(re.escape(part) for part in re.split(r"\$\{[^}]*\}", key)))
        for key in re.findall(r"`(\w+\.[^`]*\$\{[^`]*)`", source)
    ]
    words = set(re.findall(r"\w+", source))

    def is_used(key: str) -> bool:
        if f'"{key}"' in source or key.partition(".")[0] in by_value:
            return True
        return any(match[1] in words for pattern in composed if (match := pattern.fullmatch(key)))

    assert [key for key in texts("en") if not is_used(key)] == []


def code() -> str:
    return "".join(path.read_text() for path in sorted((ROOT / "js").rglob("*.js")) if path.parent.name != "words")


def texts(language: str) -> dict[str, str]:
    found = {}
    for path in sorted((ROOT / "js/words").glob(f"{language}*.js")):
        for group, body in re.findall(r"^  (\w+): \{(.*?)\},?$", path.read_text(), re.MULTILINE | re.DOTALL):
            for key, text in re.findall(r'[{,\s]"?(\w[\w ]*)"?: "((?:[^"\\]|\\.)*)"', " " + body):
                found[f"{group}.{key}"] = text
    return found


def values_in(text: str) -> list[str]:
    """The names in braces that the console replaces; braces around other words are examples of JSON."""
    return sorted(re.findall(r"\{(\w+)\}", text))


def test_modules_that_import_each_other_cannot_be_joined(tmp_path: Path) -> None:
    (tmp_path / "one.js").write_text('import { two } from "./two.js";\nexport const one = 1;\n')
    (tmp_path / "two.js").write_text('import { one } from "./one.js";\nexport const two = 2;\n')

    with pytest.raises(ValueError, match="import each other"):
        join_modules(tmp_path, "one.js")


def test_unsupported_form_of_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.js").write_text("export default 1;\n")

    with pytest.raises(ValueError, match="cannot be joined"):
        join_modules(tmp_path, "one.js")


def test_imports_of_modules_are_exported_and_used() -> None:
    for path in ROOT.rglob("*.js"):
        text = path.read_text()
        for imported, target in re.findall(r'^import \{ ([\w, ]+) \} from "([\w./-]+)";$', text, re.MULTILINE):
            source = (path.parent / target).read_text()
            for name in imported.split(", "):
                assert re.search(rf"^export (async )?(function|const|class) {name}\b", source, re.MULTILINE), (
                    path,
                    name,
                )
                assert len(re.findall(rf"\b{name}\b", text)) > 1, (path, name)


def test_modules_are_small_and_insert_no_html() -> None:
    for path in ROOT.rglob("*.js"):
        text = path.read_text()
        assert len(text.splitlines()) < 250, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
