"""Starts a local cloud: the emulator, the stack on it, and a file with their addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from local.emulator import Emulator
from local.place import REGION, SHORT_PATH, STACK_NAME, Place, alone
from local.progress import Say, say, step
from local.stack import Stack


@dataclass(frozen=True)
class Cloud:
    """The content of `.local/cloud.json` while the cloud runs."""

    api_url: str
    ws_url: str
    console_url: str
    endpoint_url: str
    region: str
    stack_name: str
    admin_key: str


@dataclass(frozen=True)
class Up:
    """A running local cloud. `first` is True if there was no stack before."""

    emulator: Emulator
    cloud: Cloud
    outputs: dict[str, str]
    first: bool


@contextmanager
def cloud_up(place: Place, tell: Say = say) -> Iterator[Up]:
    """Starts the emulator and deploys the stack to it; stops the emulator after the block."""
    with alone(place):
        yield from _up(place, tell)


def _up(place: Place, tell: Say) -> Iterator[Up]:
    emulator = Emulator(place)
    try:
        with step(f"{'emulator' if place.external else 'MiniStack'} on {place.endpoint}", tell):
            emulator.start()
        with step("functions and layers packaged", tell):
            stack = Stack(place)
        first = not stack.exists()
        if stack.current():
            tell("  ✓ stack is current, nothing to deploy")
        else:
            with step("template.yaml deployed", tell):
                stack.deploy()
        outputs = stack.outputs()
        cloud = describe(place, outputs)
        write_privately(place, cloud)
        yield Up(emulator, cloud, outputs, first)
    finally:
        place.cloud_file.unlink(missing_ok=True)
        emulator.stop()


def describe(place: Place, outputs: dict[str, str]) -> Cloud:
    api_url = outputs["ApiUrl"] if place.external else place.endpoint + SHORT_PATH
    return Cloud(
        api_url=api_url,
        ws_url=outputs.get("WebSocketUrl", ""),
        console_url=api_url + "/",
        endpoint_url=place.endpoint,
        region=REGION,
        stack_name=STACK_NAME,
        admin_key=place.admin_key(),
    )


def write_privately(place: Place, cloud: Cloud) -> None:
    place.cloud_file.unlink(missing_ok=True)
    place.cloud_file.touch(mode=0o600, exist_ok=False)
    place.cloud_file.write_text(json.dumps(asdict(cloud), indent=2) + "\n")
