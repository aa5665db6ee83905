"""Runs MiniStack as a child process, and stops it so that its state is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError
from localstack_client.session import Session

from local.launcher import processes_per_core
from local.place import REGION, ROOT, Place, keep_private
from local.progress import Failure

# On an idle machine; a busy one gets more, because an emulator that is killed forgets what it had not saved.
START_SECONDS = 30
STOP_SECONDS = 20
# Credentials of the emulator's root account. The functions' roles get their own.
ROOT_KEY, ROOT_SECRET = "test", "test"


class Emulator:
    """The MiniStack process of a local cloud, or an emulator that already runs at AWS_ENDPOINT_URL."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.place.external:
            self._check_external()
            return
        if not self._port_is_free():
            raise Failure(
                f"Port {self.place.port} is in use by another program",
                f"stop it, or take another port: PORT={self.place.port + 1} make run",
            )
        # An emulator that was killed could not delete them.
        shutil.rmtree(self.place.temporary_dir, ignore_errors=True)
        for folder in (self.place.state_dir, self.place.objects_dir, self.place.temporary_dir):
            keep_private(folder)
        self.place.log_file.unlink(missing_ok=True)
        self.place.log_file.touch(mode=0o600)
        with self.place.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "local.launcher"],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must not reach the emulator directly: stop() ends it after everything that uses it.
                start_new_session=True,
                # Its state holds secrets: keys of roles, callback secrets, files.
                umask=0o077,
            )
        self._wait_until_healthy()

    def stop(self) -> bool:
        """Ends the emulator and every function that it started. Returns False if its state may not have been saved.

        The exit code does not show that, because MiniStack kills its own process group with SIGKILL once all is
        saved."""
        process, self._process = self._process, None
        if process is None:
            return True
        ended = False
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < STOP_SECONDS * processes_per_core():
                time.sleep(0.05)
            ended = process.poll() is not None
            process.kill()
            process.wait()
        # Functions are in the emulator's process group and may run some seconds longer.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self.place.temporary_dir, ignore_errors=True)
        return ended

    def _port_is_free(self) -> bool:
        """Waits until the port is free; returns False if it stays in use.

        The emulator of a killed `make run` needs some seconds to save its state and end."""
        deadline = time.monotonic() + (STOP_SECONDS if self.place.cloud_file.exists() else 0)
        while port_in_use(self.place.port):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True

    def alive(self) -> bool:
        return bool(self.place.external) or (self._process is not None and self._process.poll() is None)

    def client(self, service: str, **options: Any) -> Any:
        return client(self.place, service, **options)

    def _environment(self) -> dict[str, str]:
        place = self.place
        # Only what a shell needs: every function would inherit the rest of this environment.
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "TMPDIR": str(place.temporary_dir),
            "PYTHONUNBUFFERED": "1",
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(place.port),
            "AWS_ENDPOINT_URL": place.endpoint,
            "AWS_ACCESS_KEY_ID": ROOT_KEY,
            "AWS_SECRET_ACCESS_KEY": ROOT_SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "MINISTACK_REGION": REGION,
            "PERSIST_STATE": "1",
            "STATE_DIR": str(place.state_dir),
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(place.objects_dir),
            "AUTH": "true",
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
        }

    def _check_external(self) -> None:
        self.place.home.mkdir(parents=True, exist_ok=True)
        try:
            self.client("sts", config=Config(retries={"total_max_attempts": 1})).get_caller_identity()
        except BotoCoreError as error:
            advice = "start it, or unset AWS_ENDPOINT_URL to have one started here"
            raise Failure(f"Nothing answers at AWS_ENDPOINT_URL={self.place.external}", advice) from error

    def _wait_until_healthy(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < START_SECONDS * processes_per_core():
            if not self.alive():
                break
            try:
                with urllib.request.urlopen(f"{self.place.endpoint}/_ministack/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.stop()
        tail = self.place.log_file.read_text(errors="replace").strip().splitlines()[-5:]
        raise Failure(
            "MiniStack did not start:\n    " + "\n    ".join(tail),
            f"read {self.place.log_file}; `make clean` forgets a damaged state",
        )


def client(place: Place, service: str, **options: Any) -> Any:
    """Returns a boto3 client with the credentials of the emulator's root account."""
    session = Session(
        aws_access_key_id=ROOT_KEY,
        aws_secret_access_key=ROOT_SECRET,
        region_name=REGION,
        localstack_host=urlsplit(place.endpoint).netloc,
    )
    return session.client(service, **options)


def port_in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
