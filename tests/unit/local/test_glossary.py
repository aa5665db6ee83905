"""Chinese texts say one word for one thing: the table of CONTRIBUTING.md, in READMEs, console and API reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from local.place import ROOT

CONSOLE = ROOT / "layers/core/tidegate/web/console"
PAGES = [ROOT / "README.zh-CN.md", ROOT / "docs/quickstart.zh-CN.md"]
PAGES += [*sorted((CONSOLE / "js/words").glob("zh*.js")), *sorted((CONSOLE / "docs").glob("*.js"))]
ROW = re.compile(r"^\| ([a-z, ]+) \| ([\u4e00-\u9fff, ]+) \| ?([^|]*?) ?\|$", re.MULTILINE)
WORDS = [
    tuple([word for word in cell.split(", ") if word] for cell in row)
    for row in ROW.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
]
# Words that must not be met in another meaning: batches and waves had one between them.
TELLING = ["批次", "批处理", "波次", "凭证", "管理员密钥", "运行器"]


def texts(path: Path) -> dict[tuple[str, str], str]:
    """The texts of a module of words by section and name."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in path.read_text("utf-8").splitlines():
        if opened := re.match(r"  (\w+): \{", line):
            section = opened[1]
        inside = re.sub(r"^  \w+: \{", "", line)
        found |= {(section, name): text for name, text in re.findall(r'"?(\w+)"?: "((?:[^"\\]|\\.)*)"', inside)}
    return found


def pairs() -> list[tuple[str, str]]:
    """Texts of the console and the API reference, English and Chinese."""
    found = re.findall(r'"([^"]+)": "([^"]+)"', (CONSOLE / "docs/words_zh.js").read_text("utf-8"))
    for chinese in (CONSOLE / "js/words").glob("zh*.js"):
        english = texts(chinese.with_name(chinese.name.replace("zh", "en")))
        found += [(english[key], text) for key, text in texts(chinese).items() if key in english]
    return found


def test_glossary_and_texts_are_read() -> None:
    assert len(WORDS) >= 15
    assert len(pairs()) > 700
    assert (CONSOLE / "docs/steps.js") in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_chinese_page_uses_no_word_that_the_glossary_replaces(page: Path) -> None:
    replaced = [word for _, _, instead in WORDS for word in instead]
    lines = page.read_text("utf-8").splitlines()
    assert [line[:80] for line in lines if any(word in line for word in replaced)] == []


@pytest.mark.parametrize("word", TELLING)
def test_chinese_word_stands_for_one_english_word(word: str) -> None:
    english = next(names for names, chinese, _ in WORDS if word in chinese)
    stems = "|".join(name.rstrip("e") for name in english)
    assert [pair for pair in pairs() if word in pair[1] and not re.search(stems, pair[0], re.IGNORECASE)] == []


@pytest.mark.parametrize("word", ["batch", "wave", "redrive", "credential", "admin key", "runner", "swarm"])
def test_english_word_has_its_chinese_word(word: str) -> None:
    chinese = next(chinese for names, chinese, _ in WORDS if word in names)
    named = [pair for pair in pairs() if re.search(rf"\b{word}(?:e?s)?\b(?!\.)", pair[0], re.IGNORECASE)]
    assert named
    assert [pair for pair in named if not any(text in pair[1] for text in chinese)] == []
