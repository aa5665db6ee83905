"""A copy of this tree, in which one bug at a time is put."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.catalog import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("layers/core", "layers/client", ".")
_CATALOG = "correct it in tests/mutants/catalog"


class DoesNotApply(Exception):
    """The catalog names a file or a text that the product no longer has."""


def changed(mutant: Mutant, root: Path = ROOT) -> str:
    """The source of the mutant's file with the fault in it. Raises DoesNotApply."""
    path = root / mutant.file
    if not path.is_file():
        raise DoesNotApply(f"{mutant.file} does not exist (moved or renamed?): {_CATALOG}")
    source = path.read_text()
    if (times := source.count(mutant.old)) != 1:
        raise DoesNotApply(f"{mutant.file} has the text to replace {times} times instead of once: {_CATALOG}")
    made = source.replace(mutant.old, mutant.new)
    try:
        compile(made, mutant.file, "exec")
    except SyntaxError as error:
        raise DoesNotApply(f"{mutant.file} does not compile with the fault ({error}): {_CATALOG}") from error
    return made


def missing_tests(mutant: Mutant, root: Path = ROOT) -> list[str]:
    return [test for test in mutant.tests if not (root / test).exists()]


def copy_tree(target: Path) -> Path:
    """Copies the tracked and new files of this tree, and compiles them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, listed):
        source, copy = ROOT / os.fsdecode(name), target / os.fsdecode(name)
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    for folder in ("layers", "functions", "local", "tests/support"):
        compileall.compile_dir(target / folder, quiet=2)
    return target


@contextmanager
def fault(change: tuple[str, str] | None, tree: Path) -> Iterator[None]:
    """Writes (a file, its source with a bug) into the tree and restores it afterwards. None changes nothing."""
    if change is None:
        yield
        return
    file, made = change
    path = tree / file
    source, was = path.read_bytes(), path.stat()
    path.write_text(made)
    # Python detects a changed file by its size and the second of its change, which may both be the same.
    os.utime(path, (was.st_atime, was.st_mtime + 60))
    try:
        yield
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
