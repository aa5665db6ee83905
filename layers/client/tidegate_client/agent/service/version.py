from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The installed package's; a checkout that was never installed has none."""
    for name in ("tidegate-client", "tidegate"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
