"""Reasons why the agent refuses to put a file in place."""

from __future__ import annotations


class RefusedPath(Exception):
    """The target lies outside the root or the allowed directories, or is not a plain name in a plain directory."""


class RefusedOwner(Exception):
    """The file cannot be given to the requested user."""


class Superseded(Exception):
    """The path has, or is about to get, content of a later window."""


class StagedFileLost(Exception):
    """The file that was staged for its Job's `activate_at` was changed or removed by another process."""


class UpdateFailed(Exception):
    """A new version of the agent is not a valid release, or did not start."""


class Restarting(Exception):
    """Not a refusal: the agent restarts as another version, which reports the result."""
