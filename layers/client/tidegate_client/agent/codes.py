"""The result codes that the agent reports for transfers, and the exceptions behind them."""

from __future__ import annotations

import errno
from enum import IntEnum

from tidegate_client.errors import ChecksumMismatch, TransferError


class RefusedPath(Exception):
    """The target path is not allowed: outside the root or the permitted directories, or not a plain file name."""


class DirectoryMoved(Exception):
    """A directory was moved, or replaced by another one, after the agent had opened it."""


class RefusedOwner(Exception):
    """The file cannot be given to the requested user."""


class Superseded(Exception):
    """Newer content is already at this path, or is about to be put there."""


class StagedFileLost(Exception):
    """The file that was staged for its Job's `activate_at` was changed or removed by another process."""


class OwnedByRelease(Exception):
    """A release manages this file, so a single transfer must not replace it."""


class UpdateFailed(Exception):
    """The new version of the agent is not a valid release, or did not start."""


class Restarting(Exception):
    """The agent restarts as another version, which then reports the result. Not an error."""


class Code(IntEnum):
    """Result codes. The API interprets 0, 115 and 409; the others only name the reason of a failure."""

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


# The first that matches decides: ChecksumMismatch is a TransferError, too.
_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (ChecksumMismatch, Code.WRONG_CONTENT),
    (TransferError, Code.FETCH_FAILED),
    (Superseded, Code.SUPERSEDED),
    (RefusedPath, Code.PATH_REFUSED),
    (DirectoryMoved, Code.DIRECTORY_MOVED),
    (RefusedOwner, Code.OWNER_REFUSED),
    (UpdateFailed, Code.UPDATE_FAILED),
    (OwnedByRelease, Code.OWNED_BY_RELEASE),
    (StagedFileLost, Code.STAGED_FILE_LOST),
    (OSError, Code.WRITE_FAILED),
)


def code_of(error: Exception) -> Code:
    """Returns the result code for the error that ended a transfer."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Code.NO_SPACE
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)
