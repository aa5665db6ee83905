"""Result codes of deliveries, and the refusals that they stand for."""

from __future__ import annotations

import errno
from enum import IntEnum

from tidegate_client.errors import ChecksumMismatch, TransferError

# --- refusals
# Reasons why the agent refuses to put a file in place.


class RefusedPath(Exception):
    """The target lies outside the root or the allowed directories, or is not a plain name in a plain directory."""


class DirectoryMoved(Exception):
    """A directory was moved, or replaced by another one, after the agent had opened it."""


class RefusedOwner(Exception):
    """The file cannot be given to the requested user."""


class Superseded(Exception):
    """The path has, or is about to get, content of a later window."""


class StagedFileLost(Exception):
    """The file that was staged for its Job's `activate_at` was changed or removed by another process."""


class OwnedByRelease(Exception):
    """A release has put the file in place, and decides about its content."""


class UpdateFailed(Exception):
    """A new version of the agent is not a valid release, or did not start."""


class Restarting(Exception):
    """Not a refusal: the agent restarts as another version, which reports the result."""


# --- codes
# The result codes that an agent reports.


class Code(IntEnum):
    """0, 115 and 409 have a meaning for the API; the others name the reason of a failure."""

    DONE = 0
    IN_PROGRESS = 115
    SUPERSEDED = 409
    FETCH_FAILED = 1001
    WRONG_CONTENT = 1002
    PATH_REFUSED = 1003
    WRITE_FAILED = 1004
    NO_SPACE = 1005
    OWNER_REFUSED = 1006
    UPDATE_FAILED = 1007
    STAGED_FILE_LOST = 1008
    DIRECTORY_MOVED = 1009
    OWNED_BY_RELEASE = 1010
    INTERNAL = 1099


def code_of(error: Exception) -> Code:
    """The code for the error that ended a transfer."""
    match error:
        case ChecksumMismatch():
            return Code.WRONG_CONTENT
        case TransferError():
            return Code.FETCH_FAILED
        case Superseded():
            return Code.SUPERSEDED
        case RefusedPath():
            return Code.PATH_REFUSED
        case DirectoryMoved():
            return Code.DIRECTORY_MOVED
        case RefusedOwner():
            return Code.OWNER_REFUSED
        case UpdateFailed():
            return Code.UPDATE_FAILED
        case OwnedByRelease():
            return Code.OWNED_BY_RELEASE
        case StagedFileLost():
            return Code.STAGED_FILE_LOST
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return Code.NO_SPACE
        case OSError():
            return Code.WRITE_FAILED
        case _:
            return Code.INTERNAL
