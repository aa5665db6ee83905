"""Whoever adds a format or a quota is told what is missing: CONTRIBUTING lists the places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from tests.support.template import ROOT
from tidegate.exports.model import ExportType, file_name_for
from tidegate.projects.model import DEFAULTS
from tidegate.sheets.files import CONTENT_TYPES, ENDINGS, Output
from tidegate.web.console.bundle import ROOT as CONSOLE
from tidegate.web.exports import TaskBody
from tidegate_client.cli import main

FORMATS = set(get_args(ExportType))
QUOTAS = DEFAULTS.keys() - {"share"}


def script(name: str) -> str:
    return (CONSOLE / "js" / name).read_text("utf-8")


def test_every_format_has_an_ending_and_a_content_type() -> None:
    assert set(ENDINGS) == FORMATS
    assert set(ENDINGS.values()) - set(CONTENT_TYPES) == set()


def test_ending_of_every_format_is_not_repeated_in_a_file_name() -> None:
    assert {file_name_for(f"a.{ending}", ending) for ending in ENDINGS.values()} == {f"a.{e}" for e in ENDINGS.values()}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_gzip_is_accepted_for_the_formats_that_are_packed(name: str) -> None:
    body = {"name": "n1", "source_data": [], "type": name, "compression": "gzip"}
    if Output(type=name, compression="gzip").is_packed:
        assert TaskBody.model_validate(body).compression == "gzip"
    else:
        with pytest.raises(ValidationError, match="compression is for"):
            TaskBody.model_validate(body)


def test_every_format_has_a_name_in_the_console() -> None:
    names = re.search(r"TYPE_NAMES = \{(.*?)\};", script("views/exports.js"))
    assert names
    assert set(re.findall(r"(\w+):", names[1])) == FORMATS


def test_every_format_is_a_choice_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "submit", "--help"])
    choices = re.search(r"--type \{(.*?)\}", capsys.readouterr().out)
    assert choices
    assert set(choices[1].split(",")) == FORMATS


@pytest.mark.parametrize("place", ["views/project.js", "words/en_pages.js", "words/zh_pages.js"])
def test_every_quota_is_in_the_console_in_both_languages(place: str) -> None:
    text = script(place)
    assert [name for name in sorted(QUOTAS) if not re.search(rf"\b{name}\b", text)] == []


def test_every_quota_is_in_the_table_of_the_docs() -> None:
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", Path(ROOT, "docs/api.md").read_text(), re.M)))
    assert sorted(QUOTAS - set(named)) == []
