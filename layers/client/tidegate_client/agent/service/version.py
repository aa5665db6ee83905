from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The installed package's; a checkout that was never installed has none."""
    try:
        return metadata.version("tidegate")
    except metadata.PackageNotFoundError:
        return "unknown"
