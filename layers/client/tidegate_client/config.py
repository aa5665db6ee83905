"""The API's address and key: from environment variables, else from the file that `tidegate login` writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tidegate_client.errors import ConfigError


@dataclass(frozen=True)
class Config:
    api_url: str | None = None
    key: str | None = None
    ws_url: str | None = None
    project_id: str | None = None

    def required_url(self) -> str:
        """Returns the API's address; raises ConfigError if none is configured."""
        if not self.api_url:
            raise ConfigError("no API address: run `tidegate login`, or set TIDEGATE_API_URL and TIDEGATE_KEY")
        return self.api_url


_ENVIRONMENT = {
    "api_url": "TIDEGATE_API_URL",
    "key": "TIDEGATE_KEY",
    "ws_url": "TIDEGATE_WS_URL",
    "project_id": "TIDEGATE_PROJECT",
}


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the file in which `tidegate login` stores addresses and keys."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config") / "config.json"


def state_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder for data that outlives a process: journals of uploads and of agents."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state")


def host_claim(environ: Mapping[str, str] = os.environ) -> str:
    """Returns a random secret of this host, stored on disk. The host can repeat an enrolment with this secret.

    If the answer to an enrolment is lost, the host sends the same secret again and gets its key."""
    path = state_path(environ) / "enrolment-claim"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(new, "w") as file:
            file.write(secrets.token_hex(16))
    # The file is empty after a crash: then an enrolment can be repeated only within its call.
    return path.read_text(encoding="utf-8").strip() or secrets.token_hex(16)


def _folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    configured = environ.get(variable)
    base = Path(configured) if configured else Path(environ.get("HOME") or Path.home()) / default
    return base / "tidegate"


DEFAULT_PROFILE = "default"
_REPAIR = "correct the file, or run `tidegate login` again, which renames it and starts a new one"


def load(environ: Mapping[str, str] = os.environ, profile: str | None = None) -> Config:
    """Returns the stored login of a profile, overridden by the environment.

    The default profile is TIDEGATE_PROFILE, else "default"."""
    name = profile or environ.get("TIDEGATE_PROFILE") or DEFAULT_PROFILE
    profiles = _stored(config_path(environ))
    if name != DEFAULT_PROFILE and name not in profiles:
        others = ", ".join(sorted(profiles)) or "none"
        raise ConfigError(
            f"there is no profile {name} (stored: {others}); create it with `tidegate login --profile {name}`"
        )
    stored = profiles.get(name, {})
    known = {field.name for field in fields(Config)}
    values = {name: value for name, value in stored.items() if name in known and value}
    if (url := environ.get("TIDEGATE_API_URL")) and url != values.get("api_url"):
        # The stored key and WebSocket address belong to the stored API: the key must not be sent to another.
        values = {}
    values |= {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}
    return Config(**values)


def further_login(profile: str, environ: Mapping[str, str] = os.environ) -> Config:
    """Returns the address and key of an additional project that an agent serves (`--also`).

    Both are in TIDEGATE_ALSO_<PROFILE> ("URL KEY"), else in the stored login of that profile. TIDEGATE_API_URL,
    TIDEGATE_KEY and the like are ignored, because they belong to the agent's first login."""
    if login := environ.get(further_login_variable(profile)):
        url, _, key = login.partition(" ")
        return Config(api_url=url, key=key)
    own = set(_ENVIRONMENT.values())
    return load({name: value for name, value in environ.items() if name not in own}, profile)


def further_login_variable(profile: str) -> str:
    """Returns the name of the environment variable that has the address and key of an additional login."""
    return "TIDEGATE_ALSO_" + re.sub(r"[^A-Za-z0-9]", "_", profile).upper()


def save(config: Config, environ: Mapping[str, str] = os.environ, profile: str | None = None) -> Path:
    """Stores a login and returns the path of the file.

    Only the owner can read the file. A crash leaves the old file intact."""
    path = config_path(environ)
    try:
        profiles = _stored(path)
    except ConfigError:
        # The error text tells users to log in again. The old file is kept: it may hold the only copy of other keys.
        path.replace(path.with_name(f"{path.name}.unreadable-{int(time.time())}"))
        profiles = {}
    profiles[profile or DEFAULT_PROFILE] = {name: value for name, value in asdict(config).items() if value}
    return _write(path, profiles)


def forget(environ: Mapping[str, str] = os.environ, profile: str | None = None) -> bool:
    """Removes a stored profile; returns False if there was none."""
    path = config_path(environ)
    profiles = _stored(path)
    if profiles.pop(profile or environ.get("TIDEGATE_PROFILE") or DEFAULT_PROFILE, None) is None:
        return False
    if profiles:
        _write(path, profiles)
    else:
        path.unlink(missing_ok=True)
    return True


def _write(path: Path, profiles: Mapping[str, Mapping[str, str]]) -> Path:
    """Writes the profiles. "default" is at the top level, where older versions expect the only login."""
    others = {name: dict(fields) for name, fields in profiles.items() if name != DEFAULT_PROFILE}
    content = {**profiles.get(DEFAULT_PROFILE, {}), **({"profiles": others} if others else {})}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).chmod(0o600)
    return Path(temporary).replace(path)


def _stored(path: Path) -> dict[str, dict[str, str]]:
    """Returns the stored profiles by name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {_REPAIR}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not contain a JSON object, as `tidegate login` writes it; {_REPAIR}")
    others = content.pop("profiles", {})
    if not isinstance(others, dict) or not all(isinstance(fields, dict) for fields in others.values()):
        raise ConfigError(f"`profiles` in {path} is not an object of objects; {_REPAIR}")
    found = {DEFAULT_PROFILE: content, **others} if content else others
    return {str(name): {str(key): str(value) for key, value in fields.items()} for name, fields in found.items()}
