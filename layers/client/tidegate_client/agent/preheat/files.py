"""The staged file on disk, in the directory of its destination."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from tidegate_client.agent.disk.place import Place, is_plain
from tidegate_client.agent.preheat.model import FileMetadata, Staged, StagedFile
from tidegate_client.agent.refusals import StagedFileLost
from tidegate_client.content import sha256_of_stream
from tidegate_client.models import Transfer


def staged_name(place: Place, agent_id: str, transfer: Transfer) -> str:
    """Different for each transfer: another one of the same content must neither use nor remove the file."""
    return place.hidden_name(agent_id, transfer["signature"], transfer["transfer_id"], suffix="staged")


def metadata_of(file: BinaryIO) -> FileMetadata:
    status = os.fstat(file.fileno())
    return FileMetadata(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def rename_to_staged(place: Place, file: BinaryIO, part: str, name: str) -> StagedFile:
    """Renames the verified part file to the staged file. The agent stays its owner, so that others cannot change it."""
    file.flush()
    os.fsync(file.fileno())
    place.rename(file, part, name)
    return StagedFile(name, os.fspath(place.file), metadata_of(file))


def find_unrecorded(place: Place, name: str, signature: str) -> StagedFile | None:
    """Finds a staged file that a killed agent had not recorded in its journal. Removes one with wrong content."""
    with place.opened(name) as file:
        if file is None:
            return None
        if is_plain(file, os.geteuid()) and sha256_of_stream(file) == signature.lower():
            os.fsync(place.directory)
            return StagedFile(name, os.fspath(place.file), metadata_of(file))
    place.drop_part(name)
    return None


@contextlib.contextmanager
def opened_unchanged(place: Place, staged: Staged) -> Iterator[BinaryIO | None]:
    """Yields the staged file; None if it is gone. Raises StagedFileLost if its content was changed.

    It is read and hashed only if its metadata changed."""
    with place.opened(staged.file.name) as file:
        if file is not None and metadata_of(file) != staged.file.metadata:
            same_content = is_plain(file) and sha256_of_stream(file) == staged.transfer["signature"].lower()
            if not same_content:
                raise StagedFileLost(
                    f"the staged file {staged.file.name} in {place.path} was changed before its activate_at: "
                    "redrive the Job to deliver it again"
                )
        yield file
