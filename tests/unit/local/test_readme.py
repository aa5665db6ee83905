"""The commands and options in the README exist."""

from __future__ import annotations

import re
import shlex

import pytest

from local.place import ROOT
from tests.support.template import load_template
from tidegate_client.cli import build_parser

README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PAGES = "\n".join([README, *(page.read_text() for page in sorted((ROOT / ".github" / "docs").glob("*.md")))])
COMMANDS = re.findall(r"^    tidegate ([^#\n]+)", PAGES, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_command_of_the_readme_is_understood(line: str) -> None:
    build_parser().parse_args(shlex.split(line))


def test_makes_of_the_readme_are_targets() -> None:
    named = {word for words in re.findall(r"\bmake ((?:[a-z][a-z-]+ ?)+)[`#]", README) for word in words.split()}
    assert named
    missing = [name for name in named if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)]
    assert missing == []


def test_parameters_of_the_readme_are_the_templates() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \| ([^|]+) \|", README, re.MULTILINE)
    assert rows
    for name, default in rows:
        assert str(load_template()["Parameters"][name]["Default"]) == default.strip().replace("–", "")


def test_links_between_pages_lead_to_files() -> None:
    pages = [ROOT / "README.md", ROOT / "layers" / "core" / "README.md", *(ROOT / ".github").rglob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 200
