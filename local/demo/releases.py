"""The step with a release on four hosts: a good revision, then a bad one, which rolls back without a download."""

from __future__ import annotations

import hashlib
import os
import pwd
from pathlib import Path
from typing import Any

from local.demo.guide import Guide, expect

HOSTS = [f"web-{number}" for number in range(1, 5)]
USER = pwd.getpwuid(os.getuid()).pw_name
GOOD, BAD = b"port = 8080\n", b"port = eighty\n"
FILE_PATH = "/conf/app.conf"


def release(guide: Guide) -> str:
    signatures = [store(guide, content) for content in (GOOD, BAD)]
    commands = [(agent_words(guide.home, host), guide.key("agent", agent_id=host)) for host in HOSTS]
    with guide.commands(commands):
        put(guide, signatures[0], "the first revision")
        shown = reaches(guide, "converged")
        guide.tell(f"revision {shown['revision']} is on {shown['counts']['current']} of {len(HOSTS)} hosts")

        put(guide, signatures[1], "a port that is not a number")
        shown = reaches(guide, "rolled_back")
        failed = guide.client.releases.revision("app", shown["withdrawn"][0])
        guide.tell(f"revision {failed['number']} ({failed['note']}): {shown['reason']}")
        guide.tell(f"revision {shown['revision']} brings the content of revision 1 back, from the hosts' own disks")
        shown = guide.until(
            lambda: guide.client.releases.get("app"),
            lambda now: now["counts"]["current"] == len(HOSTS),
            "the first content on every host",
            120,
        )
    found = [(guide.home / host / "etc/app/app.conf").read_bytes() for host in HOSTS]
    expect(found == [GOOD] * len(HOSTS), f"the hosts have {found}")
    return f"a bad revision took itself back: {len(HOSTS)} hosts have the good one, as revision {shown['revision']}"


def store(guide: Guide, content: bytes) -> str:
    source = guide.home / "app.conf"
    source.write_bytes(content)
    guide.client.files.put(source, biz_id=2, app_id=3, file_path=FILE_PATH)
    return hashlib.sha256(content).hexdigest()


def agent_words(home: Path, host: str) -> list[str]:
    root = home / host
    (root / "etc").mkdir(parents=True)
    hook = root / "check-config"
    # What the host's operator allowed: a program that refuses a port that is not a number.
    hook.write_text(f'#!/bin/sh\ngrep -q "port = [0-9]" {root}/etc/app/app.conf || {{ echo "bad port"; exit 1; }}\n')
    hook.chmod(0o755)
    words = ["agent", "--agent-id", host, "--root", str(root), "--state-dir", str(home / f"{host}.state")]
    return [*words, "--allow-hook", f"check-config={hook}", "--wait", "5"]


def put(guide: Guide, signature: str, note: str) -> None:
    place = {"target_file_dir": "/etc/app", "target_user": USER}
    body = {
        "files": [{"file_path": FILE_PATH, "signature": signature, **place}],
        "targets": {"agents": HOSTS},
        "waves": [{"percent": 50}],
        "hook": "check-config",
        "note": note,
    }
    guide.client.releases.put("app", body)


def reaches(guide: Guide, status: str) -> dict[str, Any]:
    shown = guide.until(
        lambda: guide.client.releases.get("app"), lambda now: now["status"] == status, f"the status {status}", 120
    )
    return dict(shown)
