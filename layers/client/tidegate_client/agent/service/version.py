"""The version that the agent reports."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version of the installed package; "unknown" in a checkout that was never installed."""
    for name in ("tidegate-client", "tidegate"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
