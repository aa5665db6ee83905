"""The folders, the port and the parameters of a local cloud."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local.progress import Failure

ROOT = Path(__file__).resolve().parent.parent
REGION = "us-east-1"
STACK_NAME = "tidegate"
DEFAULT_PORT = 4566
# The id that template.yaml asks the emulator to give the HTTP API, and where launcher.py serves it.
API_ID = "71de9a7e"
SHORT_PATH = "/tidegate"
# The admin key of a deployment to AWS.
AWS_KEY = ROOT / ".local" / "aws-admin-key"


@dataclass(frozen=True)
class Place:
    """Where a local cloud runs: its folder (`.local`), its port, and the template's parameters."""

    home: Path = ROOT / ".local"
    port: int = DEFAULT_PORT
    params: Mapping[str, str] = field(default_factory=dict)
    # The URL of an emulator that runs already, such as LocalStack; empty: one is started here.
    external: str = ""

    @classmethod
    def from_environment(cls) -> Place:
        """Reads PORT, TIDEGATE_PARAMS and AWS_ENDPOINT_URL."""
        port = os.environ.get("PORT") or str(DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise Failure(f"PORT={port} is not a port number", "give one between 1 and 65535, e.g. PORT=4600 make run")
        params = parse_params(os.environ.get("TIDEGATE_PARAMS", ""))
        return cls(port=int(port), params=params, external=os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/"))

    @property
    def endpoint(self) -> str:
        return self.external or f"http://127.0.0.1:{self.port}"

    @property
    def state_dir(self) -> Path:
        return self.home / "state"

    @property
    def objects_dir(self) -> Path:
        return self.home / "s3"

    @property
    def temporary_dir(self) -> Path:
        """The folder for temporary files of the emulator and its functions."""
        return self.home / "tmp"

    @property
    def log_file(self) -> Path:
        return self.home / "emulator.log"

    @property
    def cloud_file(self) -> Path:
        return self.home / "cloud.json"

    def admin_key(self) -> str:
        return kept_key(self.home / "admin-key")


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """Locks the folder of a local cloud. A second run in this folder, even on another port, would share its state."""
    place.home.mkdir(parents=True, exist_ok=True)
    with (place.home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                f"A local cloud of {place.home} is still running", "press Ctrl-C where `make run` runs, then try again"
            ) from None
        yield


def keep_private(folder: Path) -> None:
    """Makes the folder and every file in it accessible to its owner only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for inner in (folder, *folder.rglob("*")):
        if not inner.is_symlink():
            inner.chmod(0o700 if inner.is_dir() else 0o600)


def kept_key(path: Path) -> str:
    """Returns the key in this file. The file is created on first use, readable by its owner only."""
    if path.exists():
        path.chmod(0o600)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("tga_" + secrets.token_urlsafe(32))
    return path.read_text()


def sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parse_params(text: str) -> dict[str, str]:
    """Parses TIDEGATE_PARAMS, such as "CollectWindowSeconds=3 JobTimeoutSeconds=30"."""
    params = {}
    for word in text.split():
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise Failure(
                f"TIDEGATE_PARAMS holds {word!r}, which is not Name=value",
                'write it as TIDEGATE_PARAMS="CollectWindowSeconds=3 JobTimeoutSeconds=30"',
            )
        params[name] = value
    return params
