"""Versions of the agent that a Job delivers: each runs on trial first, and is rolled back if it does not start.

A release is a wheel, run directly from its file. The package that is installed on the host always starts first and
decides which version runs. It is never replaced, so a bad release cannot prevent the next update.

    releases/<sha256>.whl   the release, verified by the SHA-256 of its transfer
    releases/current        symbolic link to the release that runs; without it the installed package runs
    releases/trial          exists until `current` has reached the API for the first time
    releases/refused        the SHA-256 of releases that did not start, and why
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

# The target directory of a Job that delivers a release; it does not exist on the host.
UPDATE_DIR = "/.tidegate/agent"
RELEASE, TRIAL = "TIDEGATE_RELEASE", "TIDEGATE_TRIAL"
TRIAL_SECONDS = 60.0
STOP_SECONDS = 30.0
KEPT_RELEASES = 3


class NotARelease(ValueError):
    """The file is not a wheel of tidegate-client."""


def running_release() -> str | None:
    """The SHA-256 of the release that this process runs from; None for the installed package."""
    return os.environ.get(RELEASE) or None


class Releases:
    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / "releases"
        self._current = self.directory / "current"
        self._previous = self.directory / "previous"
        self._trial = self.directory / "trial"
        self._refused = self.directory / "refused"

    def file(self, signature: str) -> Path:
        return self.directory / f"{signature}.whl"

    def current(self) -> str | None:
        return self._release_at(self._current)

    def why_refused(self, signature: str) -> str | None:
        return self._read_refused().get(signature)

    def switch(self, signature: str) -> None:
        """Makes a downloaded release the current one, on trial. A crash leaves either the old or the new one."""
        with zipfile.ZipFile(self.file(signature)) as wheel:
            if "tidegate_client/__main__.py" not in wheel.namelist() or wheel.testzip() is not None:
                raise NotARelease("it is not a wheel of tidegate-client")
        self._set_link(self._previous, self.current())
        # Written before the switch: a crash must not leave an untried release that counts as confirmed.
        self._write(self._trial, signature)
        self._set_link(self._current, signature)

    def confirm(self) -> None:
        """Ends the trial of the running release: it has reached the API."""
        if self.on_trial() == running_release():
            self._trial.unlink(missing_ok=True)
            self._remove_old()

    def on_trial(self) -> str | None:
        """The current release, if it is still on trial."""
        try:
            signature = self._trial.read_text(encoding="utf-8")
        except OSError:
            return None
        return signature if signature == self.current() else None

    def roll_back(self, why: str) -> None:
        """Returns to the previous release, and refuses the one on trial from now on."""
        if signature := self.on_trial():
            refused = self._read_refused() | {signature: why}
            self._write(self._refused, json.dumps(dict(list(refused.items())[-50:])))
            self._set_link(self._current, self._release_at(self._previous))
        self._trial.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        keep = {self._current.resolve(), self._previous.resolve()}
        wheels = sorted(self.directory.glob("*.whl"), key=lambda path: path.stat().st_mtime, reverse=True)
        for wheel in wheels[KEPT_RELEASES:]:
            if wheel.resolve() not in keep:
                wheel.unlink(missing_ok=True)

    def _release_at(self, link: Path) -> str | None:
        try:
            target = link.readlink()
        except OSError:
            return None
        return target.stem if (self.directory / target).is_file() else None

    def _set_link(self, link: Path, signature: str | None) -> None:
        if signature is None:
            link.unlink(missing_ok=True)
            return
        new = link.with_name(f".{link.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(f"{signature}.whl")
        new.replace(link)
        self._sync()

    def _write(self, path: Path, text: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read_refused(self) -> dict[str, str]:
        try:
            found = json.loads(self._refused.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def environment_of(releases: Releases, signature: str | None) -> dict[str, str]:
    """The environment for a process of this release; None: of the installed package."""
    environment = {name: value for name, value in os.environ.items() if name not in (RELEASE, TRIAL)}
    before = [part for part in environment.pop("PYTHONPATH", "").split(os.pathsep) if part]
    parts = [part for part in before if Path(part).parent != releases.directory]
    if signature is not None:
        parts.insert(0, str(releases.file(signature)))
        environment[RELEASE] = signature
    return environment | ({"PYTHONPATH": os.pathsep.join(parts)} if parts else {})


def command_of(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tidegate_client", *arguments]


def run_trial(
    releases: Releases,
    signature: str,
    arguments: Sequence[str],
    notify_alive: Callable[[], None],
    seconds: float = TRIAL_SECONDS,
) -> None:
    """Runs the release as a child process until it has reached the API; rolls back if it does not.

    `notify_alive` is called meanwhile, for systemd's watchdog. The child is stopped in any case."""
    # By default SIGTERM would end this process only, and the child would keep running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child = subprocess.Popen(command_of(arguments), env=environment_of(releases, signature) | {TRIAL: "1"})  # noqa: S603
    deadline = time.monotonic() + seconds
    try:
        while releases.on_trial() == signature:
            if child.poll() is not None:
                releases.roll_back(f"the new version ended with exit code {child.returncode} before it reached the API")
                return
            if time.monotonic() > deadline:
                releases.roll_back(f"the new version did not reach the API within {seconds:.0f} s")
                return
            notify_alive()
            time.sleep(0.1)
    finally:
        _stop_child(child)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop_child(child: subprocess.Popen[bytes]) -> None:
    """Stops the child; its unfinished downloads resume from their part files."""
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def start_current_release(releases: Releases, arguments: Sequence[str], notify_alive: Callable[[], None]) -> None:
    """Called first by the installed package. Replaces this process by the current release; returns if there is none."""
    if running_release() is not None or os.environ.get(TRIAL):
        return
    if signature := releases.on_trial():
        run_trial(releases, signature, arguments, notify_alive)
    if signature := releases.current():
        replace_process(releases, signature, arguments)


def replace_process(releases: Releases, signature: str | None, arguments: Sequence[str]) -> None:
    """Replaces this process by that version, with the same process id; None: by the installed package."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    command = command_of(arguments)
    os.execve(command[0], command, environment_of(releases, signature))  # noqa: S606
