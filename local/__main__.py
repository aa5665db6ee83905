"""`python -m local run | demo | smoke | clean`; the Makefile's targets call it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from typing import NoReturn
from urllib.parse import urlsplit

from local.cloud import Up, cloud_up
from local.emulator import port_in_use
from local.place import AWS_KEY, Place, alone, kept_key
from local.progress import Failure, fail, say
from tidegate_client import Client, TidegateError


def run(place: Place) -> int:
    """Runs the local cloud until Ctrl-C. On its first start, also distributes a file as a first look."""
    with cloud_up(place) as up:
        show(up)
        if up.first:
            from local.demo.tour import FIRST_LOOK, tour

            say("\nA first look at what it does (`make demo` shows more):")
            tour(up, FIRST_LOOK)
        # If `make` is killed, this process gets no signal.
        parent = os.getppid() if "MAKELEVEL" in os.environ else None
        while up.emulator.alive():
            if parent not in (None, os.getppid()):
                raise KeyboardInterrupt
            time.sleep(0.5)
    raise Failure("MiniStack ended unexpectedly", f"read {place.log_file}, then `make run` again")


def demo(place: Place) -> int:
    """Starts the local cloud, plays the tour of `local/demo`, and stops it."""
    from local.demo.tour import tour

    # Shorter windows than the default, so that nobody has to wait.
    with cloud_up(replace(place, params={"CollectWindowSeconds": "8", **place.params})) as up:
        return tour(up)


def smoke(place: Place) -> int:
    """Runs `tidegate doctor` against the stack at API_URL, with the key KEY.

    Without API_URL, starts a local cloud and runs it against that."""
    from tidegate_client.cli import main as tidegate

    if url := os.environ.get("API_URL"):
        return tidegate(["doctor", "--api-url", url, "--key", os.environ.get("KEY") or kept_key(AWS_KEY)])
    with cloud_up(replace(place, params={"CollectWindowSeconds": "3", **place.params})) as up:
        return tidegate(["doctor", "--api-url", up.cloud.api_url, "--key", up.cloud.admin_key])


def clean(place: Place) -> int:
    """Deletes the state of the local cloud."""
    # A running emulator would lose its files, and write them again when it stops.
    if place.cloud_file.exists() and port_in_use(port_of(place)):
        raise Failure(
            "The local cloud is still running.", "press Ctrl-C where make run runs, then run make clean again"
        )
    with alone(place):
        for path in (place.state_dir, place.objects_dir, place.temporary_dir, place.home / "demo"):
            shutil.rmtree(path, ignore_errors=True)
        for path in (place.cloud_file, place.log_file, place.home / "admin-key"):
            path.unlink(missing_ok=True)
    say("The local cloud and its state are deleted.")
    return 0


def port_of(place: Place) -> int:
    """Returns the port of the last run. It may differ from the port that this command would use."""
    try:
        kept = json.loads(place.cloud_file.read_text())
    except ValueError:
        return place.port
    return urlsplit(str(kept.get("endpoint_url", ""))).port or place.port


def show(up: Up) -> None:
    """Prints the addresses, the admin key and the next commands."""
    cloud = up.cloud
    try:
        ticket = Client(cloud.api_url, cloud.admin_key).keys.sign_in_ticket().ticket
        console = f"""{cloud.console_url}#ticket={ticket}
            (signs you in, once, within a minute; later: {cloud.console_url} with a key)"""
    except TidegateError:
        # For example, the answer was lost on a busy machine: only that answer had the ticket.
        console = f"{cloud.console_url} (sign in with the admin key)"
    say(f"""
Tidegate is up.
  console   {console}
  API       {cloud.api_url}
  docs      {cloud.api_url}/docs
  start     {cloud.api_url}/start (first steps, with this address filled in)
  admin key {cloud.admin_key}

  next, in another terminal:
    .venv/bin/tidegate login --profile admin --api-url {cloud.api_url}    (asks for the admin key)
    .venv/bin/tidegate --profile admin project create shop --allow-private-urls
    (and so on: README.md, docs/quickstart.md)
Ctrl-C stops it. Its data is kept for the next run.""")


def stopped(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = {"run": run, "demo": demo, "smoke": smoke, "clean": clean}
    parser.add_argument("command", choices=commands)
    command = commands[parser.parse_args().command]
    signal.signal(signal.SIGTERM, stopped)
    try:
        return command(Place.from_environment())
    except Failure as failure:
        return fail(failure)
    except KeyboardInterrupt:
        say("\nStopped.")
        return 0 if command is run else 130


if __name__ == "__main__":
    sys.exit(main())
