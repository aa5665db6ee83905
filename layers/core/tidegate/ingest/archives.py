"""Reads zip and tar archives entry by entry, and refuses harmful ones.

Sizes are counted while unpacking, because the sizes that an archive states may be false.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, cast

from tidegate.errors import BadArchive, ConnectionFailed
from tidegate.files.model import path_fault
from tidegate.ingest.unpacking import Budget, Unpacked

MOST_ENTRIES = 10_000
# Text and logs grow about 20 times when unpacked. An archive that grows more than this was made to do harm.
_MOST_GROWTH = 200
# Up to this size, any growth is harmless.
_ALWAYS_ALLOWED = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
# Far more than the directory of a zip with MOST_ENTRIES files needs. zipfile takes ten times as much memory to read it.
_LARGEST_READ = 16 * 1024 * 1024
# Far more than the headers of one tar entry, and of MOST_ENTRIES, need. tarfile takes a hundred times as much memory.
_LONGEST_HEADER = 1024 * 1024
_MOST_HEADERS = 64 * 1024 * 1024
# Archives of git have one of 52 characters.
_LONGEST_GLOBAL_HEADER = 4096
_HERE = re.compile(r"\A(?:\./)+")

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
    entries; and, while entries are read, if they unpack to far more than the archive's size. Entries of a zip must be
    stored or deflated.
    """
    budget = Budget(max(_ALWAYS_ALLOWED, size * _MOST_GROWTH))
    seen: set[str] = set()
    try:
        for entry in _zip_entries(archive, budget) if _is_zip(archive) else _tar_entries(archive, budget):
            if entry.path in seen:
                raise BadArchive(f"{entry.path!r} is in the archive twice: make an archive with each path once")
            seen.add(entry.path)
            yield entry
    except _BROKEN as error:
        raise BadArchive(
            f"the archive cannot be read: {str(error)[:200]}. Pack it again, or upload it again"
        ) from error


def _require_few(count: int) -> None:
    if count > MOST_ENTRIES:
        raise BadArchive(f"the archive has more than {MOST_ENTRIES:,} files and folders: split it into several")


def _is_zip(archive: IO[bytes]) -> bool:
    found = zipfile.is_zipfile(archive)
    archive.seek(0)
    return found


def _zip_entries(archive: IO[bytes], budget: Budget) -> Iterator[ArchiveEntry]:
    with zipfile.ZipFile(archive) as opened:
        _require_few(len(opened.infolist()))
        for info in opened.infolist():
            if info.is_dir():
                continue
            # The upper half is the Unix mode. A symbolic link would be extracted as a file that holds its target.
            kind = info.external_attr >> 16 & 0o170000
            if kind not in (0, 0o100000):
                raise BadArchive(f"{_shown(info.filename)} is a link or a device: only regular files can be extracted")
            if info.flag_bits & 1:
                raise BadArchive(
                    f"{_shown(info.filename)} is encrypted: only archives without a password can be extracted"
                )
            # zipfile unpacks other methods without a limit on what one read returns: a bomb would fill the memory.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadArchive(
                    f"{_shown(info.filename)} is neither stored nor deflated: pack the zip with deflate, or use a tar"
                )
            yield ArchiveEntry(_path(info.filename), info.file_size, partial(_zip_chunks, opened, info, budget))


def _zip_chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    try:
        with opened.open(info) as stream:
            while chunk := stream.read(_CHUNK):
                budget.spend(len(chunk))
                yield chunk
    except _BROKEN as error:
        raise BadArchive(f"{_shown(info.filename)} cannot be read: {str(error)[:200]}") from error


class _TarStream:
    """The bytes of a tar for tarfile, which needs `tell` and a forward `seek`. Limits how much it takes as headers."""

    def __init__(self, source: Unpacked) -> None:
        self._source = io.BufferedReader(source, _CHUNK)  # type: ignore[type-var]
        self._at = 0
        # What the headers of an entry, and all headers, may still have. None while the content of an entry is read.
        self.header_left: int | None = _LONGEST_HEADER
        self._headers_left = _MOST_HEADERS

    def tell(self) -> int:
        return self._at

    def seek(self, to: int) -> int:
        if to < self._at:
            raise tarfile.ReadError("an entry refers to an earlier place of the archive")
        while self._at < to and (skipped := self._source.read(min(_CHUNK, to - self._at))):
            self._at += len(skipped)
        return self._at

    def read(self, count: int) -> bytes:
        if count < 0:
            raise tarfile.ReadError("an entry has a negative size")
        if self.header_left is not None:
            self.header_left -= count
            self._headers_left -= count
            if self.header_left < 0 or self._headers_left < 0:
                raise BadArchive(
                    f"an entry has more than {_LONGEST_HEADER:,} bytes of headers, or all have more than "
                    f"{_MOST_HEADERS:,}, so this may be an archive bomb: pack it again"
                )
        found = self._source.read(count)
        self._at += len(found)
        return found


def _tar_entries(archive: IO[bytes], budget: Budget) -> Iterator[ArchiveEntry]:
    stream = _TarStream(Unpacked(archive, budget))
    try:
        opened = tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:")  # noqa: SIM115 - closed below
    except tarfile.ReadError as error:
        raise BadArchive(
            "the file is neither a zip nor a tar (plain, gzip, bzip2 or xz): pack it in one of these formats"
        ) from error
    with opened:
        for info in _tar_members(opened, stream):
            if info.isdir():
                continue
            if not info.isreg():
                raise BadArchive(f"{_shown(info.name)} is a link or a device: only regular files can be extracted")
            if info.size < 0:
                raise BadArchive(f"{_shown(info.name)} has a negative size: pack it again")
            if info.issparse():
                # The holes of a sparse file are not in the archive, so `Unpacked` has not counted them.
                budget.spend(info.size)
            yield ArchiveEntry(_path(info.name), info.size, partial(_tar_chunks, opened, info))


def _tar_members(opened: tarfile.TarFile, stream: _TarStream) -> Iterator[tarfile.TarInfo]:
    """All entries, also folders and links. Keeps none of them: each holds its extended headers."""
    count = 0
    while info := opened.next():
        count += 1
        _require_few(count)
        opened.members.clear()  # type: ignore[attr-defined]
        # tarfile copies the headers for all entries into every entry.
        if sum(len(name) + len(value) for name, value in opened.pax_headers.items()) > _LONGEST_GLOBAL_HEADER:
            raise BadArchive(
                f"the headers for all entries have more than {_LONGEST_GLOBAL_HEADER:,} characters: pack it again"
            )
        stream.header_left = None
        yield info
        stream.header_left = _LONGEST_HEADER


def _tar_chunks(opened: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    stream = cast(IO[bytes], opened.extractfile(info))
    try:
        while chunk := stream.read(_CHUNK):
            yield chunk
    except _BROKEN as error:
        raise BadArchive(f"{_shown(info.name)} cannot be read: {str(error)[:200]}") from error


def _shown(name: str) -> str:
    """For an error text, which is stored: a name in a tar may have a megabyte."""
    return repr(name[:200])


def _path(name: str) -> str:
    path = _HERE.sub("", name.replace("\\", "/"))
    fault = "must be relative" if path.startswith("/") or path[1:2] == ":" else path_fault(path)
    if fault:
        raise BadArchive(f"the path {_shown(name)} in the archive {fault}")
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
