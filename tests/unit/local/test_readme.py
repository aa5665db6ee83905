"""The README and the docs: their commands, links, parameters and paths exist, and they stay short enough to read."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from local.place import ROOT
from tests.support.template import load_template
from tidegate.web.openapi import VERSION
from tidegate_client.cli import build_parser

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "node_modules" not in page.parts)
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, ROOT / "layers/core/README.md", ROOT / "layers/client/README.md"]
TRANSLATED = [("README.md", "README.zh-CN.md"), ("docs/quickstart.md", "docs/quickstart.zh-CN.md")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, each with its language."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands of the shell blocks and of indented blocks, one a line, without comments."""
    shell = "\n".join(block for language, block in blocks(text) if language == "sh")
    indented = "\n".join(re.findall(r"^    (tidegate .*)$", prose(text), re.MULTILINE))
    joined = re.sub(r"\\\n\s*", "", f"{shell}\n{indented}")
    lines = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in joined.splitlines())
    return [line.removeprefix(".venv/bin/") for line in lines if line]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


COMMANDS = sorted(
    {line for page in PAGES for line in commands(page.read_text("utf-8")) if line.startswith("tidegate ")}
)


@pytest.mark.parametrize("line", COMMANDS)
def test_command_of_a_page_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"@(\S+\.json)", line):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    build_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_within_a_sentence_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = build_parser().format_help()
    for line in re.findall(r"`(tidegate [^`…]+)`", re.sub(r"\s+", " ", prose(page.read_text("utf-8")))):
        given = shlex.split(line)[1:]
        named = [word for word in given if not word.startswith("-")]
        assert not named or line.startswith("tidegate --") or re.search(rf"^    {named[0]} ", words, re.MULTILINE), line
        try:
            build_parser().parse_args(given)
        except SystemExit:
            # A sentence may leave out arguments, but not name what does not exist.
            error = capsys.readouterr().err
            assert not re.search("invalid choice|unrecognized", error), f"{line}: {error}"


def test_commands_are_found_in_readme_quickstart_and_guides() -> None:
    few = {name_of(page) for page in PAGES if any(line in COMMANDS for line in commands(page.read_text("utf-8")))}
    guides = {name_of(page) for page in (ROOT / "docs/guides").glob("*.md")}
    assert {"README.md", "README.zh-CN.md", "docs/quickstart.md", "docs/quickstart.zh-CN.md", *guides} <= few
    assert {path.removeprefix("docs/guides/").removesuffix(".md") for path in guides} == {
        "distribute",
        "fleet",
        "releases",
        "exports",
        "batches",
        "ingest",
        "webhooks",
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_bodies_of_curl_are_json(page: Path) -> None:
    for language, block in blocks(page.read_text("utf-8")):
        if language == "sh":
            for body in re.findall(r"-d '(\{.*?\})'(?:\s|$)", block, re.DOTALL):
                json.loads(body)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_commands_of_a_page_are_targets(page: Path) -> None:
    text = page.read_text("utf-8")
    named = re.findall(r"`(?:\w+=\S* )*make ((?:[a-z][a-z0-9-]+ ?)+)[^`]*`", text)
    named += re.findall(r"(?:^|\s)make ((?:[a-z][a-z0-9-]+ ?)+)$", "\n".join(commands(text)), re.MULTILINE)
    targets = {word for words in named for word in words.split()}
    assert [name for name in targets if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)] == []
    assert page.name not in ("README.md", "CONTRIBUTING.md") or page.parent != ROOT or {"run", "test"} <= targets


def test_parameters_of_the_docs_are_the_templates() -> None:
    rows = re.findall(r"^\| (`[A-Z]\w+`(?:, `[A-Z]\w+`)*) \| ([^|]+) \|", OPERATIONS, re.MULTILINE)
    assert len(rows) >= 20
    for names, given in rows:
        parameters = [load_template()["Parameters"][name] for name in re.findall(r"\w+", names)]
        defaults = [str(parameter["Default"]).replace("-", "") for parameter in parameters]
        shown = [value.strip().replace("–", "") for value in given.split(",")]
        assert "by the account" in given or defaults == (shown if len(shown) > 1 else shown * len(defaults)), names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}#{anchor}"


def test_pages_that_the_product_names_exist() -> None:
    sources = [path for path in (ROOT / "layers").rglob("*.py") if "docs/" in path.read_text("utf-8")]
    named = {found for path in sources for found in re.findall(r"docs/[\w/-]+\.md", path.read_text("utf-8"))}
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_paths_of_the_code_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    roots = [ROOT, *(ROOT / path for path in ("functions", "layers/core/tidegate", "layers/client/tidegate_client"))]
    roots.append(ROOT / "layers/client")
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|js|toml|md))`", text))
    assert len(named) >= 15
    assert [path for path in sorted(named) if not any((root / path).exists() for root in roots)] == []


def test_architecture_has_every_folder_machine_and_layer_of_the_core() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    folders = {path.parent.name for path in (ROOT / "layers/core/tidegate").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)) == folders
    picture = page.partition("## Words")[0]
    machines = {path.name.removesuffix(".asl.json") for path in (ROOT / "statemachines").glob("*.json")}
    assert [name for name in sorted(machines) if not re.search(rf"Step Functions[\w ·]* {name}\b", picture)] == []
    (contract, *_) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = " > ".join(contract["layers"]).replace("tidegate.", "")
    assert layers in re.sub(r"\s+", " ", page)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_is_short(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_a_page_are_short_except_those_of_tables(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_figures_of_the_readme_are_those_of_the_bench() -> None:
    bench = (ROOT / "tests/bench/README.md").read_text("utf-8")
    for name in ("README.md", "README.zh-CN.md"):
        rows = re.findall(r"^\|.*\| ([^|]*\d[^|]*) \|$", (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert len(rows) == 5, name
        figures = [figure for row in rows for figure in re.findall(r"[\d.]+", row)]
        assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", bench)] == []


def test_version_is_the_same_in_packages_api_and_changelog() -> None:
    packages = {
        tomllib.loads((ROOT / path).read_text("utf-8"))["project"]["version"]
        for path in ("pyproject.toml", "layers/client/pyproject.toml")
    }
    released = re.findall(
        r"^## \[(\d[\d.]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert packages == {VERSION} == {released[0]}


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED)
def test_translation_has_the_same_commands_headings_and_links(english: str, chinese: str) -> None:
    one, other = ((ROOT / name).read_text("utf-8") for name in (english, chinese))
    assert commands(one) == commands(other)
    assert [language for language, _ in blocks(one)] == [language for language, _ in blocks(other)]
    levels = [re.findall(r"^(#+) ", prose(text), re.MULTILINE) for text in (one, other)]
    assert levels[0] == levels[1]
    each_has_its_own = re.compile(r"(README|quickstart)(\.zh-CN)?\.md$")
    links = [
        # The headings of the page itself are translated; another test follows links to them.
        {re.sub("^#.*", "#", link) for link in re.findall(r"\]\(([^)]+)\)", text) if not each_has_its_own.search(link)}
        for text in (one, other)
    ]
    assert links[0] == links[1]
