from __future__ import annotations

import re
from pathlib import Path

from local.lock import pins, problems, unmet


def test_lock_and_the_layer_are_current() -> None:
    assert problems() == []


def test_range_that_the_lock_does_not_satisfy_is_named() -> None:
    assert unmet(["pydantic>=99", "urllib3>=2"], {"pydantic": "2.13.5", "urllib3": "2.8.0"}) == ["pydantic>=99"]


def test_requirement_that_was_never_locked_is_named() -> None:
    assert unmet(["new-thing>=1"], {}) == ["new-thing>=1"]


def test_pins_are_read_past_extras_markers_and_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("Moto[s3]==5.2.5 \\\n    --hash=sha256:00\nPy_Yaml==6.0 ; python_version < '4'\n    # via x\n")
    assert pins(lock) == {"moto": "5.2.5", "py-yaml": "6.0"}


def test_no_file_of_the_lock_names_a_registry() -> None:
    root = Path(__file__).parents[3]
    for path in (root / ".lock" / "dev.txt", root / "layers" / "deps" / "requirements.txt"):
        assert "://" not in path.read_text()


def test_nothing_is_installed_without_a_hash() -> None:
    """Every `pip install` of the Makefile and the workflows checks hashes, or installs only this project."""
    root = Path(__file__).parents[3]
    texts = [root / "Makefile", *(root / ".github" / "workflows").glob("*.yml")]
    lines = [line for path in texts for line in path.read_text().splitlines() if "pip install" in line]
    assert len(lines) >= 4
    assert [line for line in lines if "--require-hashes" not in line and "--no-deps -e ." not in line] == []


def test_documents_give_no_key_or_secret_as_an_argument() -> None:
    root = Path(__file__).parents[3]
    pages = [
        root / "README.md",
        root / "layers" / "client" / "README.md",
        *root.glob("*.md"),
        root / "layers/core/tidegate/web/console/docs/steps.js",
        *(root / "docs").rglob("*.md"),
    ]
    given = re.compile(r"--(?:key|secret) (?!-|release\.key)\S|--(?:key|secret)=")
    assert [f"{page.name}: {found}" for page in pages for found in given.findall(page.read_text())] == []
