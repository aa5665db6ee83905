"""Where the API is and which key to use: the environment first, then what `tidegate login` stored."""

from __future__ import annotations

import json
import os
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


def load(environ: Mapping[str, str] = os.environ) -> Config:
    stored = _stored(config_path(environ))
    known = {field.name for field in fields(Config)}
    values = {name: value for name, value in stored.items() if name in known and value}
    if (url := environ.get("TIDEGATE_API_URL")) and url != values.get("api_url"):
        # The stored key and WebSocket belong to the stored address: they must not be sent to another.
        values = {}
    values |= {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}
    return Config(**values)


def save(config: Config, environ: Mapping[str, str] = os.environ) -> Path:
    """Readable by its owner alone from its first byte on, and never half written."""
    path = config_path(environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({name: value for name, value in asdict(config).items() if value}, file, indent=2)
        file.write("\n")
    Path(temporary).chmod(0o600)
    return Path(temporary).replace(path)


def _stored(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); run `tidegate login` again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not what `tidegate login` writes; run it again")
    return {str(name): str(value) for name, value in content.items()}
