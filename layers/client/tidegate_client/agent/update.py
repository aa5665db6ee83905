"""New versions of the agent: signing and verifying them, and replacing the running version."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import json
import logging
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate_client.agent.codes import RefusedPath, UpdateFailed
from tidegate_client.agent.disk import read_trusted, superseded
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.options import AgentOptions
from tidegate_client.errors import TidegateError
from tidegate_client.inputs import Transfer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# Where the client lies: the site-packages of an environment, or a directory or file that Python can run.
_HOME = Path(__file__).parents[2]
_PACKAGED = _HOME.is_file() or (_HOME / "__main__.py").is_file()


def version() -> str:
    """Returns the version of the installed package; "unknown" in a source checkout that was never installed."""
    for name in ("tidegate-client", "tidegate"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


# --- signing
# Signed releases of the agent: Ed25519, by the library `cryptography` (`pip install 'tidegate-client[update]'`).
#
# A signed release is three lines and the wheel:
#
#     tidegate-agent-release 1
#     <the signature, base64>
#     {"name": "tidegate-client", "sha256": "<of the wheel>", "version": "1.2.0"}
#     <the wheel>
#
# The signature covers the first and the third line. The private key stays on the machine that signs, away from the API
# and the hosts; each host has the public key, which `tidegate agent install` gave it.

FORMAT = b"tidegate-agent-release 1"
PACKAGE = "tidegate-client"
# The agent reads a release into memory. A wheel of the agent has less than one megabyte.
MOST_BYTES = 64 * 1024**2
_LONGEST_LINE, _LONGEST_KEYS = 1000, 64 * 1024
_VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,5})(?:(a|b|rc|\.post)(\d{1,9}))?")
_PHASES = {"a": -3, "b": -2, "rc": -1, None: 0, ".post": 1}
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class SigningError(TidegateError):
    """A release cannot be signed or verified on this machine, or a key file cannot be used."""


class NotSigned(Exception):
    """The file is not a release that one of the host's keys has signed."""


@dataclass(frozen=True)
class Release:
    """A verified release: its version and its wheel."""

    version: str
    wheel: bytes


def version_key(version: str) -> tuple[list[int], int, int]:
    """Returns a sort key for versions such as 1.2.0, 1.3.0rc1 and 1.3.0.post1. Raises ValueError for other texts."""
    found = _VERSION.fullmatch(version)
    if not found:
        raise ValueError(f"{version!r} is not a version of the form 1.2.3, 1.2.3rc1 or 1.2.3.post1")
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers, _PHASES[found[2]], int(found[3] or 0)


# --- for the machine that signs


def create_key(path: Path, passphrase: str = "") -> Path:
    """Writes a new private key, which only its owner can read, and the public key beside it.
    Returns the public key's path."""
    crypto = _cryptography()
    key = crypto.ed25519.Ed25519PrivateKey.generate()
    encoding, formats = crypto.serialization.Encoding.PEM, crypto.serialization
    kept = formats.BestAvailableEncryption(passphrase.encode()) if passphrase else formats.NoEncryption()
    private = key.private_bytes(encoding, formats.PrivateFormat.PKCS8, kept)
    public = key.public_key().public_bytes(encoding, formats.PublicFormat.SubjectPublicKeyInfo)
    public_path = path.with_name(f"{path.name}.pub")
    for file, content, mode in ((path, private, 0o600), (public_path, public, 0o644)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
    return public_path


def is_encrypted(key: bytes) -> bool:
    return b"BEGIN ENCRYPTED PRIVATE KEY" in key


def sign(wheel: bytes, key: bytes, passphrase: str = "") -> tuple[str, bytes]:
    """Signs a wheel; returns its version and the signed release. `key`: the private key as PEM."""
    crypto = _cryptography()
    try:
        private = crypto.serialization.load_pem_private_key(key, passphrase.encode() or None)
    except (ValueError, TypeError) as error:
        raise SigningError(f"the private key cannot be read; is the passphrase right? {error}") from error
    if not isinstance(private, crypto.ed25519.Ed25519PrivateKey):
        raise SigningError("the private key is not an Ed25519 key: tidegate agent new-release-key makes one")
    try:
        version = wheel_version(wheel)
        version_key(version)
    except (NotSigned, ValueError) as error:
        raise SigningError(f"the file cannot be released: {error}") from error
    statement = {"name": PACKAGE, "version": version, "sha256": hashlib.sha256(wheel).hexdigest()}
    line = json.dumps(statement, sort_keys=True).encode()
    signature = base64.b64encode(private.sign(_signed(line)))
    return version, b"\n".join((FORMAT, signature, line, wheel))


# --- for hosts


def read_keys(path: Path) -> tuple[Ed25519PublicKey, ...]:
    """Reads the public keys from a file.

    Raises SigningError if the file is not valid, or another user may change it."""
    try:
        return parse_keys(read_trusted(path, _LONGEST_KEYS))
    except RefusedPath as error:
        raise SigningError(f"another user could sign releases: {error}; chown root, chmod go-w") from error
    except OSError as error:
        raise SigningError(f"the release key {path} cannot be read: {error}") from error


def parse_keys(content: bytes) -> tuple[Ed25519PublicKey, ...]:
    """Parses the public keys of a PEM text: one, or two during a change of keys."""
    crypto = _cryptography()
    try:
        keys = tuple(crypto.serialization.load_pem_public_key(pem) for pem in _PEM.findall(content))
    except ValueError as error:
        raise SigningError(f"the release key cannot be read: {error}") from error
    if not keys or not all(isinstance(key, crypto.ed25519.Ed25519PublicKey) for key in keys):
        raise SigningError("the release key has no Ed25519 public key: tidegate agent new-release-key makes one")
    return keys


def open_release(signed: bytes, keys: tuple[Ed25519PublicKey, ...]) -> Release:
    """Returns the release if one of the keys has signed it and the wheel is unchanged. Otherwise raises NotSigned."""
    lines = [line for line in signed[: 3 * _LONGEST_LINE].split(b"\n", 3)[:3] if len(line) <= _LONGEST_LINE]
    if len(lines) < 3 or lines[0] != FORMAT:
        raise NotSigned("the file is not signed: tidegate agent sign-release signs a wheel")
    try:
        signature = base64.b64decode(lines[1], validate=True)
    except binascii.Error as error:
        raise NotSigned("its signature is not base64") from error
    if not any(_verifies(key, signature, _signed(lines[2])) for key in keys):
        raise NotSigned("its signature is not by the release key of this host")
    statement = _statement(lines[2])
    wheel = signed[sum(len(line) + 1 for line in lines) :]
    if statement.get("sha256") != hashlib.sha256(wheel).hexdigest():
        raise NotSigned("the signature is for another file: the SHA-256 of the wheel differs from the signed one")
    if statement.get("name") != PACKAGE or statement.get("version") != wheel_version(wheel):
        raise NotSigned("the signed name and version are not those of the wheel")
    return Release(str(statement["version"]), wheel)


def _signed(line: bytes) -> bytes:
    return FORMAT + b"\n" + line


def _verifies(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _statement(line: bytes) -> dict[str, Any]:
    try:
        statement = json.loads(line)
    except ValueError as error:
        raise NotSigned("its statement is not JSON") from error
    if not isinstance(statement, dict):
        raise NotSigned("its statement is not a JSON object")
    return statement


def wheel_version(wheel: bytes) -> str:
    """Returns the version in a wheel's metadata.

    Raises NotSigned if this is not a wheel of the agent, or if its agent does not verify signatures."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
            metadata = message_from_bytes(archive.read(names[0])) if len(names) == 1 else None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise NotSigned(f"it is not a wheel: {error}") from error
    if metadata is None or re.sub(r"[-_.]+", "-", str(metadata["Name"])).lower() != PACKAGE:
        raise NotSigned(f"it is not a wheel of {PACKAGE}")
    if "update" not in metadata.get_all("Provides-Extra", []):
        raise NotSigned("it is from before releases were signed: it would install later versions without a check")
    return str(metadata["Version"])


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SigningError("signatures need the library cryptography: pip install 'tidegate-client[update]'") from error
    return type("Cryptography", (), {"serialization": serialization, "ed25519": ed25519})


# --- releases
# Versions of the agent that a Job delivers: each runs on trial first, and is rolled back if it does not start.
#
# A release is a wheel, run directly from its file. The package that is installed on the host always starts first and
# decides which version runs. It is never replaced, so a bad release cannot prevent the next update.
#
#     releases/<sha256>.signed   a signed release until it is verified, by the SHA-256 of its transfer
#     releases/<sha256>.whl   the wheel of that release
#     releases/current        symbolic link to the release that runs; without it the installed package runs
#     releases/trial          exists until `current` has reached the API for the first time
#     releases/refused        the SHA-256 of releases that did not start, and why

# The target directory of a Job that delivers a release; it does not exist on the host.
UPDATE_DIR = "/.tidegate/agent"
RELEASE, TRIAL = "TIDEGATE_RELEASE", "TIDEGATE_TRIAL"
TRIAL_SECONDS = 60.0
STOP_SECONDS = 30.0
KEPT_RELEASES = 3


class NotARelease(ValueError):
    """The file is not a wheel of tidegate-client."""


def running_release() -> str | None:
    """Returns the SHA-256 of the release that this process runs; None if it runs the installed package."""
    return os.environ.get(RELEASE) or None


class Releases:
    """The versions of the agent in the state directory: the current one, the previous one, and the one on trial."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / "releases"
        self._current = self.directory / "current"
        self._previous = self.directory / "previous"
        self._trial = self.directory / "trial"
        self._refused = self.directory / "refused"

    def file(self, signature: str) -> Path:
        return self.directory / f"{signature}.whl"

    def signed_file(self, signature: str) -> Path:
        return self.directory / f"{signature}.signed"

    def add(self, signature: str, wheel: bytes) -> None:
        """Stores the wheel of a verified release."""
        self._write(self.file(signature), wheel)

    def current(self) -> str | None:
        return self._release_at(self._current)

    def why_refused(self, signature: str) -> str | None:
        return self._read_refused().get(signature)

    def switch(self, signature: str) -> None:
        """Makes a downloaded release the current one, on trial.

        After a crash, either the old or the new release is the current one."""
        with zipfile.ZipFile(self.file(signature)) as wheel:
            if "tidegate_client/__main__.py" not in wheel.namelist() or wheel.testzip() is not None:
                raise NotARelease("it is not a wheel of tidegate-client")
        self._set_link(self._previous, self.current())
        # Written before the switch: a crash must not leave an untried release that counts as confirmed.
        self._write(self._trial, signature.encode())
        self._set_link(self._current, signature)

    def drop_unfit(self, installed: str) -> None:
        """Makes the installed package current again, unless the current release is newer and verifies signatures.

        Somebody may have installed a newer package since, with options that the release does not know."""
        signature = self.current()
        try:
            if signature and version_key(wheel_version(self.file(signature).read_bytes())) > version_key(installed):
                return
        except (NotSigned, ValueError):
            pass
        self._set_link(self._current, None)
        self._trial.unlink(missing_ok=True)

    def confirm(self) -> None:
        """Ends the trial of the running release, because it has reached the API."""
        if self.on_trial() == running_release():
            self._trial.unlink(missing_ok=True)
            self._remove_old()

    def on_trial(self) -> str | None:
        """Returns the current release if it is still on trial, else None."""
        try:
            signature = self._trial.read_text(encoding="utf-8")
        except OSError:
            return None
        return signature if signature == self.current() else None

    def roll_back(self, why: str) -> None:
        """Makes the previous release current again. The release on trial is refused from now on."""
        if signature := self.on_trial():
            refused = self._read_refused() | {signature: why}
            self._write(self._refused, json.dumps(dict(list(refused.items())[-50:])).encode())
            self._set_link(self._current, self._release_at(self._previous))
        self._trial.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        keep = {self._current.resolve(), self._previous.resolve()}
        for signed in self.directory.glob("*.signed"):
            signed.unlink(missing_ok=True)
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

    def _write(self, path: Path, content: bytes) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{path.name}.new")
        with new.open("wb") as file:
            file.write(content)
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
    """Returns the environment variables for a process of this release.

    If `signature` is None, returns those for a process of the installed package."""
    environment = {name: value for name, value in os.environ.items() if name not in (RELEASE, TRIAL)}
    before = [part for part in environment.pop("PYTHONPATH", "").split(os.pathsep) if part]
    parts = [part for part in before if Path(part).parent != releases.directory]
    if _PACKAGED and running_release() is None:
        # The directory of the package or the single file has dependencies that Python would not find.
        parts = [str(_HOME), *(part for part in parts if part != str(_HOME))]
    if signature is not None:
        parts.insert(0, str(releases.file(signature)))
        environment[RELEASE] = signature
    return environment | ({"PYTHONPATH": os.pathsep.join(parts)} if parts else {})


def command_of(arguments: Sequence[str]) -> list[str]:
    """Returns the command that starts the version that the environment names."""
    # Do not import from the current directory, which another user may own. (Python knows -P only since 3.11.)
    start = "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    start += "runpy.run_module('tidegate_client', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", start, *arguments]


def program() -> list[str]:
    """Returns the command that starts this installation."""
    return [sys.executable, *([str(_HOME)] if _PACKAGED else ["-m", "tidegate_client"])]


def run_trial(
    releases: Releases,
    signature: str,
    arguments: Sequence[str],
    notify_alive: Callable[[], None],
    seconds: float = TRIAL_SECONDS,
) -> None:
    """Runs the release as a child process until the child has reached the API.

    Rolls back if the child does not reach the API. Meanwhile, `notify_alive` is called for systemd's watchdog. In the
    end, the child is stopped in any case."""
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
    """Stops the child process; unfinished downloads resume from their part files."""
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def start_current_release(
    releases: Releases, arguments: Sequence[str], notify_alive: Callable[[], None], *, allow_downgrade: bool = False
) -> None:
    """Replaces this process by the current release. The installed package calls this before it does anything else.

    Returns if there is no current release, or if this process already runs a release."""
    if running_release() is not None or os.environ.get(TRIAL):
        return
    if not allow_downgrade:
        releases.drop_unfit(version())
    if signature := releases.on_trial():
        run_trial(releases, signature, arguments, notify_alive)
    if signature := releases.current():
        replace_process(releases, signature, arguments)


def replace_process(releases: Releases, signature: str | None, arguments: Sequence[str]) -> None:
    """Replaces this process by the release with this signature, under the same process id.

    If `signature` is None, replaces the process by the installed package."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    command = command_of(arguments)
    os.execve(command[0], command, environment_of(releases, signature))  # noqa: S606


# --- update
# A transfer that delivers a new version of the agent. Its result is reported by the version that runs afterwards.

log = logging.getLogger("tidegate.agent")


def is_update(transfer: Transfer) -> bool:
    return transfer["target_file_dir"].rstrip("/") == UPDATE_DIR


def release_keys(release_key: Path | None) -> tuple[Ed25519PublicKey, ...]:
    """Returns the keys that may sign releases. Raises SigningError if this host cannot update itself."""
    if release_key is None:
        raise SigningError("--self-update needs --release-key FILE, the public key by which releases are signed")
    return read_keys(release_key)


def make_self_update(options: AgentOptions, journal: Journal, restart: Callable[[], None]) -> SelfUpdate | None:
    """Returns the self-update of this agent; None without --self-update.

    If the host has no usable key, the self-update refuses every release."""
    if not options.self_update:
        return None
    keys: tuple[Ed25519PublicKey, ...] = ()
    why_off: str | None = None
    try:
        # Read once: a key file that is replaced later changes nothing in this process.
        keys = release_keys(options.release_key)
    except SigningError as error:
        why_off = str(error)
        log.warning("self-update is off: %s", why_off)
    return SelfUpdate(Releases(options.state_dir), journal, restart, keys, why_off, options.allow_downgrade)


@dataclass(frozen=True)
class SelfUpdate:
    """Updates the agent. `restart` stops the agent, so that it starts again as the new version."""

    releases: Releases
    journal: Journal
    restart: Callable[[], None]
    keys: tuple[Ed25519PublicKey, ...]
    why_off: str | None = None
    allow_downgrade: bool = False

    def local_transfer(self, transfer: Transfer) -> Transfer | None:
        """Returns the transfer, changed to put the release into the agent's own directory.

        Returns None if this release already runs."""
        if transfer.get("container_id"):
            raise RefusedPath("a new version of the agent can be sent to a host only, not to a container")
        signature, sequence = transfer["signature"].lower(), transfer.get("sequence")
        if signature == running_release():
            return None
        if self.why_off:
            raise UpdateFailed(f"self-update is off on this host: {self.why_off}")
        if reason := self.releases.why_refused(signature):
            raise UpdateFailed(reason)
        if (transfer.get("size") or 0) > MOST_BYTES:
            raise UpdateFailed(f"a release has at most {MOST_BYTES // 1024**2} MiB")
        applied = self.journal.applied(self.releases.directory)
        if applied and sequence is not None and applied.sequence > sequence:
            raise superseded(applied)
        self.releases.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self.releases.signed_file(signature).name
        release = {"target_file_dir": "/releases", "file_name": name, "mode": "0600", "sequence": None}
        own_user = pwd.getpwuid(os.geteuid()).pw_name
        return transfer | release | {"target_user": own_user, "swarm": None}  # type: ignore[return-value]

    def switch(self, transfer: Transfer) -> bool:
        """Verifies the release in the file that was put in place, switches to the release and restarts.

        Returns False, with nothing changed, if this version already runs."""
        signature, sequence = transfer["signature"].lower(), transfer.get("sequence")
        signed = self.releases.signed_file(signature)
        try:
            if signed.stat().st_size > MOST_BYTES:
                raise NotSigned(f"a release has at most {MOST_BYTES // 1024**2} MiB")
            release = open_release(signed.read_bytes(), self.keys)
            if not self._is_newer(release):
                return False
            self.releases.add(signature, release.wheel)
            self.releases.switch(signature)
        except (NotSigned, NotARelease, zipfile.BadZipFile) as error:
            self.releases.file(signature).unlink(missing_ok=True)
            raise UpdateFailed(f"the file is not a release of the agent for this host: {error}") from error
        finally:
            signed.unlink(missing_ok=True)
        if sequence is not None:
            self.journal.apply(self.releases.directory, Applied(sequence, signature))
        log.info("version %s follows %s", release.version, version())
        self.restart()
        return True

    def _is_newer(self, release: Release) -> bool:
        """Returns False if this version already runs, else True.

        Raises UpdateFailed if the version is lower than the running one, unless the host allows a lower version."""
        running = version()
        if release.version == running:
            return False
        try:
            new, old = version_key(release.version), version_key(running)
        except ValueError as error:
            if self.allow_downgrade:
                return True
            raise UpdateFailed(f"the versions cannot be compared: {error}") from error
        if new < old and not self.allow_downgrade:
            raise UpdateFailed(
                f"{release.version} is lower than {running}, which runs: start the agent with --allow-downgrade to "
                "allow that"
            )
        return new != old
