"""Where the API is and which key to use: the environment first, then what `tidegate login` stored."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tidegate_client.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Config:
    api_url: str | None = None
    key: str | None = None
    ws_url: str | None = None
    project_id: str | None = None

    def required_url(self) -> str:
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
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "config.json"


def state_path(environ: Mapping[str, str] = os.environ) -> Path:
    return _base(environ, "XDG_STATE_HOME", ".local/state")


def _base(environ: Mapping[str, str], variable: str, default: str) -> Path:
    given = environ.get(variable)
    base = Path(given) if given else Path(environ.get("HOME") or Path.home()) / default
    return base / "tidegate"


DEFAULT_PROFILE = "default"


def load(environ: Mapping[str, str] = os.environ, profile: str | None = None) -> Config:
    """What `tidegate login` stored under the profile (TIDEGATE_PROFILE, else "default"), the environment over it."""
    name = profile or environ.get("TIDEGATE_PROFILE") or DEFAULT_PROFILE
    profiles = _stored(config_path(environ))
    if name != DEFAULT_PROFILE and name not in profiles:
        others = ", ".join(sorted(profiles)) or "none"
        raise ConfigError(
            f"there is no profile {name} (known: {others}); make it with `tidegate login --profile {name}`"
        )
    stored = profiles.get(name, {})
    known = {field.name for field in fields(Config)}
    values = {name: value for name, value in stored.items() if name in known and value}
    if (url := environ.get("TIDEGATE_API_URL")) and url != values.get("api_url"):
        # The stored key and WebSocket belong to the stored address: they must not be sent to another.
        values = {}
    values |= {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}
    return Config(**values)


def also(profile: str, environ: Mapping[str, str] = os.environ) -> Config:
    """Another login beside the first: the environment's TIDEGATE_ALSO_<PROFILE> ("URL KEY"), else the stored one.

    TIDEGATE_KEY and its like belong to the first."""
    if given := environ.get(also_variable(profile)):
        url, _, key = given.partition(" ")
        return Config(api_url=url, key=key)
    own = set(_ENVIRONMENT.values())
    return load({name: value for name, value in environ.items() if name not in own}, profile)


def also_variable(profile: str) -> str:
    return "TIDEGATE_ALSO_" + re.sub(r"[^A-Za-z0-9]", "_", profile).upper()


def save(config: Config, environ: Mapping[str, str] = os.environ, profile: str | None = None) -> Path:
    """Readable by its owner alone from its first byte on, and never half written."""
    path = config_path(environ)
    try:
        profiles = _stored(path)
    except ConfigError:
        # What cannot be read is of no use to keep.
        profiles = {}
    profiles[profile or DEFAULT_PROFILE] = {name: value for name, value in asdict(config).items() if value}
    return _write(path, profiles)


def forget(environ: Mapping[str, str] = os.environ, profile: str | None = None) -> bool:
    """Removes a profile; False if there was none."""
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
    """The default profile's fields are at the top, as they were before there were others."""
    others = {name: dict(fields) for name, fields in profiles.items() if name != DEFAULT_PROFILE}
    content = {**profiles.get(DEFAULT_PROFILE, {}), **({"profiles": others} if others else {})}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    Path(temporary).chmod(0o600)
    return Path(temporary).replace(path)


def _stored(path: Path) -> dict[str, dict[str, str]]:
    """The stored profiles by name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); run `tidegate login` again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not what `tidegate login` writes; run it again")
    others = content.pop("profiles", {})
    if not isinstance(others, dict) or not all(isinstance(fields, dict) for fields in others.values()):
        raise ConfigError(f"the profiles of {path} are not what `tidegate login` writes; run it again")
    found = {DEFAULT_PROFILE: content, **others} if content else others
    return {str(name): {str(key): str(value) for key, value in fields.items()} for name, fields in found.items()}
