"""The getting-started page: its commands are parsed, and its Python calls methods of the SDK."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex

import pytest

from tests.support.template import ROOT
from tidegate_client import Client
from tidegate_client.cli import build_parser

SCRIPT = (ROOT / "layers/core/tidegate/web/console/docs/steps.js").read_text("utf-8")
STEPS = json.loads(re.split(r"export const STEPS = ", SCRIPT)[1].rstrip().rstrip(";"))


def commands() -> list[str]:
    lines = [line.split("      #")[0] for step in STEPS for line in step["cli"].splitlines()]
    return [line for line in lines if line.startswith("tidegate ") and "--help" not in line]


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_start_page_are_parsed(line: str) -> None:
    build_parser().parse_args(shlex.split(line.replace("{URL}", "http://127.0.0.1:4566/tidegate"))[1:])


@pytest.mark.parametrize("step", STEPS, ids=[step["title"] for step in STEPS])
def test_python_of_the_start_page_calls_existing_methods(step: dict[str, str]) -> None:
    code = "\n".join(line for line in step["python"].splitlines() if not line.startswith("pip "))
    client = Client("http://127.0.0.1:1", "tg_x")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Attribute):
                method = getattr(getattr(client, owner.attr), node.func.attr)
                named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(method).bind(*node.args, **named)


def test_curl_bodies_of_the_start_page_are_json() -> None:
    bodies = [body for step in STEPS for body in re.findall(r"-d '(\{.*?\})'(?:\s|$)", step["curl"], re.DOTALL)]
    assert len(bodies) == 5
    for body in bodies:
        json.loads(body.replace("'$SHA256'", "0" * 64))
