"""The first steps, on the start page and in the docs: commands are parsed, and the Python calls methods of the SDK."""

from __future__ import annotations

import ast
import inspect
import re
import shlex

import pytest

import tidegate_client
from tests.support.template import ROOT
from tidegate.web.console.bundle import programs
from tidegate_client.cli import build_parser
from tidegate_client.client import Client

START = programs()
STEPS = (ROOT / "layers/core/tidegate/web/console/docs/steps.js").read_text("utf-8")


def commands() -> list[str]:
    lines = [line.split("     #")[0] for step in START["cli"] for line in step.splitlines()]
    return [line for line in lines if line.startswith("tidegate ")]


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_start_page_are_parsed(line: str) -> None:
    build_parser().parse_args(shlex.split(line)[1:])


def test_every_language_has_every_step_in_both_languages() -> None:
    steps = {name: len(parts) for name, parts in START.items()}
    assert set(steps.values()) == {5}, steps
    assert len(re.findall(r'^    \["', STEPS, re.MULTILINE)) == 2 * 5


def check_calls(code: str) -> int:
    """Checks that what the code imports and calls of the SDK exists and takes these arguments. Returns how many."""
    client, found = Client("http://127.0.0.1:1", "tg_x"), 0
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "tidegate_client":
            found += sum(hasattr(tidegate_client, alias.name) or pytest.fail(alias.name) for alias in node.names)
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Attribute):
            method = getattr(getattr(client, called.value.attr), called.attr)
        elif isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "client":
            method = getattr(client, called.attr)
        elif isinstance(called, ast.Name) and hasattr(tidegate_client, called.id):
            method = getattr(tidegate_client, called.id)
        else:
            continue
        named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
        inspect.signature(method).bind(*node.args, **named)
        found += 1
    return found


@pytest.mark.parametrize("step", START["python"])
def test_python_of_the_start_page_calls_existing_methods(step: str) -> None:
    assert check_calls(step)


# The programs of the contracts are run, in tests/integration/client/test_contract_pages.py.
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md"), *ROOT.glob("*.md")]
SNIPPETS = [
    (page.name, code)
    for page in sorted(PAGES)
    for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_python_of_the_docs_calls_existing_methods(page: str, code: str) -> None:
    assert check_calls(code) >= 2, page


def test_quickstarts_and_the_guide_to_webhooks_have_python() -> None:
    assert {page for page, _ in SNIPPETS} == {"quickstart.md", "quickstart.zh-CN.md", "webhooks.md"}


def test_pages_have_every_text_in_both_languages() -> None:
    frame = (ROOT / "layers/core/tidegate/web/console/docs/frame.js").read_text("utf-8")
    dictionaries = re.findall(r"^  (?:en|zh): \{(.*?)^  \},", frame, re.MULTILINE | re.DOTALL)
    english, chinese = (re.findall(r'(\w+): "', text) for text in dictionaries)
    assert english == chinese
    assert len(english) > 20
