"""The console's page and files need no key, are small, cached by hash, and have a strict content security policy."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.web.console.bundle import ROOT, console, join_modules


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

    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in script.headers["cache-control"]
    again = cloud.http("GET", "/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_files_are_gzipped_and_under_200_kb_together(cloud: MotoCloud) -> None:
    plain = cloud.http("GET", "/")
    packed = cloud.http("GET", "/", headers={"accept-encoding": "br, gzip"})

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    bundle = console()
    assert sum(len(asset.gzipped) for asset in (bundle.page, *bundle.assets.values())) < 200_000


def test_me_shows_project_and_scopes_of_the_key(cloud: MotoCloud, project: Project) -> None:
    mine = cloud.http("GET", "/v1/me", key=project.key).json()

    assert mine["project_id"] == project.id
    assert mine["scopes"] == ["read", "write"]
    assert cloud.http("GET", "/v1/me", key=cloud.admin_key).json()["scopes"] == ["admin"]
    assert cloud.http("GET", "/v1/me").status == 401


def test_both_languages_have_every_text_of_the_console() -> None:
    texts = {
        language: {word for path in (ROOT / "js/words").glob(f"{language}*.js") for word in words_of(path.read_text())}
        for language in ("en", "zh")
    }
    used = {key for path in ROOT.rglob("*.js") for key in re.findall(r'\bt\("([\w.]+)"', path.read_text())}

    assert texts["en"] == texts["zh"]
    assert used
    assert used <= texts["en"]


def words_of(module: str) -> set[str]:
    groups = re.findall(r"^  (\w+): \{(.*?)\},?$", module, re.MULTILINE | re.DOTALL)
    return {f"{group}.{key}" for group, body in groups for key in re.findall(r"[{,\s](\w+): \"", " " + body)}


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
