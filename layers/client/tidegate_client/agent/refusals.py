"""Why the agent does not put a file in place although it could be fetched."""

from __future__ import annotations


class RefusedPath(Exception):
    """The target lies outside the root or the allowed directories, or is not a plain name in a plain directory."""


class RefusedOwner(Exception):
    """The file could not belong to the user that was asked for."""


class Superseded(Exception):
    """The path already holds, or is about to hold, content of a later window."""


class StagedFileLost(Exception):
    """The file that was staged for its Job's `activate_at` was changed or removed by somebody else."""


class UpdateFailed(Exception):
    """A new version of the agent is not one, or did not come up."""


class Restarting(Exception):
    """Not a refusal: the agent begins again as another version, which tells the result."""
