"""Runs the steps of the tour in order and prints a summary."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from local.cloud import Up
from local.demo.distribution import distribute
from local.demo.guide import Guide, Unexpected
from local.demo.library import upload_and_download
from local.demo.releases import release
from local.demo.swarm import swarm
from local.demo.work import batch, bring_in, export
from local.progress import Failure, moving, remember, say, usual_seconds
from tidegate_client.client import Client
from tidegate_client.errors import TidegateError


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Guide], str]


STEPS = [
    Step("A file into the library and out again", upload_and_download),
    Step("One file to five hosts through two windows", distribute),
    Step("One large file to eight hosts that send it to each other", swarm),
    Step("A bad release that takes itself back", release),
    Step("A file brought in from a URL, through the queue", bring_in),
    Step("An Excel file from a paged source, and a callback", export),
    Step("A batch through a business's own URL", batch),
]
FIRST_LOOK = [STEPS[1]]
# Two windows and their transfers.
USUAL_SECONDS = 60


@contextmanager
def guided(up: Up) -> Iterator[Guide]:
    admin = Client(up.cloud.api_url, up.cloud.admin_key)
    try:
        project_id = admin.projects.create(f"demo-{secrets.token_hex(4)}", allow_private_urls=True)["project_id"]
        key = admin.keys.create(project_id, ["read", "write"])
    except TidegateError as error:
        raise Failure(f"The API cannot make a project: {error}", f"read {up.emulator.place.log_file}") from error
    home = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    try:
        client = Client(up.cloud.api_url, key["key"])
        yield Guide(up.cloud, up.outputs, admin, client, project_id, str(key["callback_secret"]), home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def tour(up: Up, steps: list[Step] = STEPS) -> int:
    """Runs the steps; returns 0 if every step had the expected result, else 1."""
    lines, failed = [], 0
    with guided(up) as guide:
        for number, step in enumerate(steps, 1):
            say(f"\n  {number}. {step.name}")
            started = time.monotonic()
            try:
                with moving(partial(str, step.name), usual_seconds(step.name, USUAL_SECONDS)):
                    outcome, mark = step.run(guide), "✓"
                remember(step.name, time.monotonic() - started)
            except (Unexpected, TidegateError, OSError, KeyError) as error:
                outcome, mark, failed = f"{type(error).__name__}: {error}", "✗", failed + 1
                guide.tell(f"✗ {outcome}")
            lines.append(f"  {mark} {step.name} ({time.monotonic() - started:.1f} s)\n      {outcome}")
    say("\nSummary\n" + "\n".join(lines))
    say(f"\n{len(steps) - failed} of {len(steps)} steps succeeded.")
    return 1 if failed else 0
