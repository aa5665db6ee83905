"""Reads zip and tar archives entry by entry, and refuses harmful ones.

Sizes are counted while unpacking, because the sizes that an archive states may be false.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, cast

from tidegate.errors import BadArchive, ConnectionFailed
from tidegate.files.model import path_fault

MOST_ENTRIES = 10_000
# Text and logs grow about 20 times when unpacked. An archive that grows more than this was made to do harm.
_MOST_GROWTH = 200
# Up to this size, any growth is harmless.
_ALWAYS_ALLOWED = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
# Far more than the directory of a zip with MOST_ENTRIES files, or the header of a tar entry, needs.
_LARGEST_READ = 64 * 1024 * 1024
_LONGEST_HEADER = 1024 * 1024

# What the standard library raises on damaged archives. Beside the errors that it documents: ValueError for a name that
# is not UTF-8, LookupError for an empty name.
_BROKEN = (
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A regular file in an archive. Read its `chunks` before you ask for the next entry."""

    path: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


def entries_of(archive: IO[bytes], size: int) -> Iterator[ArchiveEntry]:
    """The files of a zip, or of a tar that may be packed with gzip, bzip2 or xz. `size` is that of the archive.

    BadArchive for any other file, for links, devices, encrypted entries, paths that leave the archive and too many
    entries; and, while entries are read, if they unpack to far more than the archive's size.
    """
    budget = _Budget(max(_ALWAYS_ALLOWED, size * _MOST_GROWTH))
    seen: set[str] = set()
    try:
        for entry in _zip_entries(archive, budget) if _is_zip(archive) else _tar_entries(archive, budget):
            if entry.path in seen:
                raise BadArchive(f"{entry.path!r} is in the archive twice: make an archive with each path once")
            seen.add(entry.path)
            if len(seen) > MOST_ENTRIES:
                raise BadArchive(f"the archive has more than {MOST_ENTRIES:,} files: split it into several")
            yield entry
    except _BROKEN as error:
        raise BadArchive(f"the archive cannot be read: {error}. Pack it again, or upload it again") from error


class _Budget:
    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BadArchive(
                f"the archive unpacks to more than {self._most:,} bytes, so it may be an archive bomb: split it"
            )


def _is_zip(archive: IO[bytes]) -> bool:
    found = zipfile.is_zipfile(archive)
    archive.seek(0)
    return found


def _zip_entries(archive: IO[bytes], budget: _Budget) -> Iterator[ArchiveEntry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if info.is_dir():
                continue
            # The upper half is the Unix mode. A symbolic link would be extracted as a file that holds its target.
            kind = info.external_attr >> 16 & 0o170000
            if kind not in (0, 0o100000):
                raise BadArchive(f"{info.filename!r} is a link or a device: only regular files can be extracted")
            if info.flag_bits & 1:
                raise BadArchive(f"{info.filename!r} is encrypted: only archives without a password can be extracted")
            yield ArchiveEntry(_path(info.filename), info.file_size, partial(_zip_chunks, opened, info, budget))


def _zip_chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: _Budget) -> Iterator[bytes]:
    try:
        with opened.open(info) as stream:
            while chunk := stream.read(_CHUNK):
                budget.spend(len(chunk))
                yield chunk
    except _BROKEN as error:
        raise BadArchive(f"{info.filename!r} cannot be read: {error}") from error


class _TarInfo(tarfile.TarInfo):
    """Refuses large extended headers, which tarfile would read into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size > _LONGEST_HEADER and not (self.isreg() or self.isdir()):
            raise BadArchive(
                f"the header of {self.name!r} has {self.size:,} bytes, so this may be an archive bomb: pack it again"
            )
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def _tar_entries(archive: IO[bytes], budget: _Budget) -> Iterator[ArchiveEntry]:
    try:
        opened = tarfile.open(fileobj=archive, mode="r|*", tarinfo=_TarInfo)  # noqa: SIM115 - closed below
    except tarfile.ReadError as error:
        raise BadArchive(
            "the file is neither a zip nor a tar (plain, gzip, bzip2 or xz): pack it in one of these formats"
        ) from error
    with opened:
        for info in opened:
            if info.isdir():
                continue
            if not info.isreg():
                raise BadArchive(f"{info.name!r} is a link or a device: only regular files can be extracted")
            # Counted here, because entries that are skipped are unpacked too.
            budget.spend(info.size)
            yield ArchiveEntry(_path(info.name), info.size, partial(_tar_chunks, opened, info))


def _tar_chunks(opened: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    stream = cast(IO[bytes], opened.extractfile(info))
    try:
        while chunk := stream.read(_CHUNK):
            yield chunk
    except _BROKEN as error:
        raise BadArchive(f"{info.name!r} cannot be read: {error}") from error


def _path(name: str) -> str:
    path = name.replace("\\", "/")
    while path.startswith("./"):
        path = path[2:]
    fault = "must be relative" if path.startswith("/") or path[1:2] == ":" else path_fault(path)
    if fault:
        raise BadArchive(f"the path {name!r} in the archive {fault}")
    return path


class RangeReader(io.RawIOBase):
    """An object in the bucket as a seekable file. `read(start, last)` fetches a range of its bytes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        if len(buffer) > _LARGEST_READ:
            raise BadArchive(
                f"the archive's directory has {len(buffer):,} bytes, so this may be an archive bomb: pack it again"
            )
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        try:
            found = self._read(self._at, last)
        except OSError as error:
            # A DomainError, so that it is not taken for a damaged archive.
            raise ConnectionFailed(f"reading the archive from the bucket failed: {error!r}") from error
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
