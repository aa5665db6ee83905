"""Archives: unpacks them within limits and stores their entries as files of the library."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from tidegate.aws.table import ConditionFailed
from tidegate.common.ids import digest
from tidegate.errors import BadArchive, ConnectionFailed, FileNotFound, NoSpace, QuotaExceeded, WrongState
from tidegate.files.library import Announcement, new_file
from tidegate.files.model import FAILED, PENDING, READY, File, path_fault, upload_object
from tidegate.ingest import Heartbeat, Step, StepOutcome
from tidegate.ingest.feeds import path_matches
from tidegate.ingest.model import PART_BYTES
from tidegate.projects.audit import SYSTEM, act
from tidegate.queue.model import Request

if TYPE_CHECKING:
    from tidegate.ingest import Ingest

# The most that one call unpacks. Without a limit, a kilobyte of bzip2 or xz becomes gigabytes before it can be counted.
_MOST_AT_ONCE = 1024 * 1024
_PACKED_READ = 32 * 1024
# xz needs as much memory as its dictionary has: 64 MiB at the highest level, but a file may ask for 4 GiB.
_LZMA_MEMORY = 256 * 1024 * 1024
_LONGEST_MAGIC = 10


class Budget:
    """Counts the bytes that an archive unpacks to. BadArchive if there are too many."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BadArchive(
                f"the archive unpacks to more than {self._most:,} bytes, so it may be an archive bomb: split it"
            )


class _Decompressor(Protocol):
    """The methods that the decompressors of bz2 and lzma have. `_Gzip` has them for zlib."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _decompressor(start: bytes) -> _Decompressor | None:
    """Returns a decompressor for data that starts with these bytes. None if such data is not packed."""
    if start.startswith(b"\x1f\x8b\x08"):
        return _Gzip()
    if start.startswith(b"BZh") and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return bz2.BZ2Decompressor()
    if start.startswith((b"\xfd7zXZ", b"\x5d\x00\x00\x80")):
        return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
    return None


class Unpacked(io.RawIOBase):
    """Reads the unpacked bytes of a file. A file that is not packed is read as it is.

    Several packed streams in a row are one file, because parallel packers write such files. Bytes after the last stream
    are ignored.
    """

    def __init__(self, packed: IO[bytes], budget: Budget) -> None:
        self._packed = packed
        self._budget = budget
        # Bytes that were read from the file and are not unpacked yet.
        self._read_ahead = packed.read(_LONGEST_MAGIC)
        self._decompressor = _decompressor(self._read_ahead)
        self._plain = self._decompressor is None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        most = min(len(buffer), _MOST_AT_ONCE)
        if not most:
            # zlib would take 0 as no limit.
            return 0
        found = self._next_packed(most) if self._plain else self._unpack(most)
        self._budget.spend(len(found))
        buffer[: len(found)] = found
        return len(found)

    def _unpack(self, most: int) -> bytes:
        while self._decompressor is not None:
            if self._decompressor.eof:
                self._next_stream()
                continue
            data = self._next_packed(_PACKED_READ) if self._decompressor.needs_input else b""
            if not data and self._decompressor.needs_input:
                raise EOFError("it ends before its packed data is complete")
            if found := self._decompressor.decompress(data, most):
                return found
        return b""

    def _next_packed(self, most: int) -> bytes:
        ahead, self._read_ahead = self._read_ahead[:most], self._read_ahead[most:]
        return ahead or self._packed.read(most)

    def _next_stream(self) -> None:
        """Begins the next packed stream, if there is one. Zeros between streams are skipped."""
        rest = (self._decompressor.unused_data if self._decompressor else b"") + self._read_ahead
        while len(rest := rest.lstrip(b"\0")) < _LONGEST_MAGIC and (more := self._packed.read(_PACKED_READ)):
            rest += more
        self._read_ahead = rest
        self._decompressor = _decompressor(rest)


# --- archives
# Reads zip and tar archives entry by entry, and refuses harmful ones.
#
# Sizes are counted while unpacking, because the sizes that an archive states may be false.

MOST_ENTRIES = 10_000
# Text and logs grow about 20 times when unpacked. An archive that grows more than this was made to do harm.
_MOST_GROWTH = 200
# Up to this size, any growth is harmless.
_ALWAYS_ALLOWED = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
# Far more than a zip's directory of MOST_ENTRIES files needs. zipfile takes ten times as much memory to read it.
_LARGEST_READ = 16 * 1024 * 1024
# Far more than the headers of one tar entry, and of MOST_ENTRIES entries, need. tarfile takes a hundred times as much
# memory to read them.
_LONGEST_HEADER = 1024 * 1024
_MOST_HEADERS = 64 * 1024 * 1024
# Archives of git have a global header of 52 characters.
_LONGEST_GLOBAL_HEADER = 4096
_HERE = re.compile(r"\A(?:\./)+")

# Errors of the standard library for damaged archives. It does not document ValueError (for a name that is not UTF-8)
# and LookupError (for an empty name).
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
    """Yields the files of a zip, or of a tar that may be packed with gzip, bzip2 or xz. `size`: bytes of the archive.

    BadArchive for a file of any other format. BadArchive, too, for an archive with too many entries, links, devices,
    encrypted entries, paths that leave the archive, or zip entries that are neither stored nor deflated. And while
    entries are read, BadArchive if they unpack to far more bytes than the archive has.
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
                raise BadArchive(
                    f"{_short_name(info.filename)} is a link or a device: only regular files can be extracted"
                )
            if info.flag_bits & 1:
                raise BadArchive(
                    f"{_short_name(info.filename)} is encrypted: only archives without a password can be extracted"
                )
            # zipfile unpacks other methods without a limit on what one read returns: a bomb would fill the memory.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadArchive(
                    f"{_short_name(info.filename)} is neither stored nor deflated: pack the zip with deflate, "
                    "or use a tar"
                )
            yield ArchiveEntry(_path(info.filename), info.file_size, partial(_zip_chunks, opened, info, budget))


def _zip_chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    try:
        with opened.open(info) as stream:
            while chunk := stream.read(_CHUNK):
                budget.spend(len(chunk))
                yield chunk
    except _BROKEN as error:
        raise BadArchive(f"{_short_name(info.filename)} cannot be read: {str(error)[:200]}") from error


class _TarStream:
    """The bytes of a tar, in the form that tarfile needs: with `tell`, and a `seek` that only goes forward.

    Limits the size of headers.
    """

    def __init__(self, source: Unpacked) -> None:
        self._source = io.BufferedReader(source, _CHUNK)  # type: ignore[type-var]
        self._at = 0
        # How many bytes the headers of this entry, and all headers, may still have. None while content is read.
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
                raise BadArchive(f"{_short_name(info.name)} is a link or a device: only regular files can be extracted")
            if info.size < 0:
                raise BadArchive(f"{_short_name(info.name)} has a negative size: pack it again")
            if info.issparse():
                # The holes of a sparse file are not in the archive, so `Unpacked` has not counted them.
                budget.spend(info.size)
            yield ArchiveEntry(_path(info.name), info.size, partial(_tar_chunks, opened, info))


def _tar_members(opened: tarfile.TarFile, stream: _TarStream) -> Iterator[tarfile.TarInfo]:
    """Yields all entries, also folders and links. Keeps no entry in memory, because each holds its extended headers."""
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
        raise BadArchive(f"{_short_name(info.name)} cannot be read: {str(error)[:200]}") from error


def _short_name(name: str) -> str:
    """Returns the beginning of a name, for an error text, which is stored. A name in a tar may have a megabyte."""
    return repr(name[:200])


def _path(name: str) -> str:
    path = _HERE.sub("", name.replace("\\", "/"))
    fault = "must be relative" if path.startswith("/") or path[1:2] == ":" else path_fault(path)
    if fault:
        raise BadArchive(f"the path {_short_name(name)} in the archive {fault}")
    return path


class RangeReader(io.RawIOBase):
    """A seekable file of an object in the bucket. `read(start, last)` fetches a range of its bytes."""

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


# --- extract
# `extract`: stores the files in an archive of the library as files of the library.

# Bytes per read of the archive: large enough for few requests to S3, small enough for the memory.
_BUFFER = 4 * 1024 * 1024
# No entry is begun when fewer seconds of the invocation are left.
_RESERVE_SECONDS = 120.0


def extract(ingest: Ingest, step: Step) -> StepOutcome:
    """`extract`: stores the entries one by one. File ids are the same in each run, so a repeat skips what is stored."""
    request, until = step.request, ingest.monotonic() + step.seconds_left - _RESERVE_SECONDS
    archive = _archive(ingest, request)
    done = dict(step.state or {"files": 0, "bytes": 0})
    skipped = 0
    for number, entry in enumerate(_chosen(ingest, request, archive)):
        if number < int(done["files"]):
            skipped += 1
            continue
        # At least one entry in every invocation, so that the request makes progress.
        if ingest.monotonic() > until and number > skipped:
            return StepOutcome(state=done)
        _store_entry(ingest, request, archive, entry, step.heartbeat, done)
        done = {"files": number + 1, "bytes": int(done["bytes"]) + entry.size}
    return StepOutcome({"file_id": archive.file_id, **done})


def _archive(ingest: Ingest, request: Request) -> File:
    file = ingest.files.require(request.project_id, str(request.payload["file_id"]))
    if file.state != READY or file.signature is None:
        raise WrongState(f"the archive {file.file_id} is {file.state}: extract it when it is ready")
    return file


def _chosen(ingest: Ingest, request: Request, archive: File) -> Iterator[ArchiveEntry]:
    key = ingest.files.object_of(request.project_id, str(archive.signature))
    stored = ingest.parts.head(key)
    if stored is None:
        raise FileNotFound(f"the content of the archive {archive.file_id} is gone from the bucket: upload it again")
    include: Sequence[str] = request.payload.get("include") or ()
    exclude: Sequence[str] = request.payload.get("exclude") or ()
    raw = RangeReader(lambda start, last: ingest.parts.read_range(key, start, last), stored.size)
    reader = io.BufferedReader(raw, _BUFFER)  # type: ignore[type-var]
    for entry in entries_of(reader, stored.size):
        taken = not include or path_matches(entry.path, include)
        if taken and not path_matches(entry.path, exclude):
            yield entry


def _store_entry(
    ingest: Ingest, request: Request, archive: File, entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]
) -> None:
    try:
        file = _announced(ingest, request, archive, entry)
    except QuotaExceeded as error:
        raise NoSpace(f"{entry.path!r} does not fit: {error.detail}") from error
    if file.state != PENDING:
        if file.state == FAILED:
            raise BadArchive(f"{entry.path!r} could not be stored: {file.error}")
        return
    written = _write(ingest, upload_object(file.project_id, file.file_id), entry, heartbeat, done)
    if written != entry.size:
        raise BadArchive(f"{entry.path!r} has {written} bytes, but the archive states {entry.size}: pack it again")
    try:
        ingest.uploads().complete(file.project_id, file.file_id)
    except QuotaExceeded as error:
        raise NoSpace(f"{entry.path!r} does not fit: {error.detail}") from error


def _announced(ingest: Ingest, request: Request, archive: File, entry: ArchiveEntry) -> File:
    """Returns the entry's file, after creating it. If the step runs again, the file exists already and is returned.

    The file's id is made from the request and the path.
    """
    made_at, tail = request.request_id[len("req-") :][:10], digest(request.request_id, entry.path, length=16)
    file_id = f"file-{made_at}{tail}"
    known = ingest.files.get(request.project_id, file_id)
    if known is not None:
        return known
    path = f"{str(request.payload['file_path']).rstrip('/')}/{entry.path}"
    if fault := path_fault(path):
        raise BadArchive(f"the path {path!r} {fault}")
    now = ingest.clock()
    announced = Announcement(archive.biz_id, archive.app_id, path, size=entry.size)
    file = new_file(request.project_id, announced, PENDING, now, file_id=file_id)
    line = act(request.project_id, file_id, now, SYSTEM, "file.extract", f"from {archive.file_id}")
    try:
        ingest.files.add(file, line)
    except ConditionFailed:
        # The step runs twice, and the other run created the file first.
        return ingest.files.get(request.project_id, file_id) or file
    return file


def _write(ingest: Ingest, key: str, entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]) -> int:
    pieces = _pieces(entry, heartbeat, done)
    first = next(pieces, bytearray())
    written = len(first)
    if written < PART_BYTES:
        ingest.parts.put(key, first)
        return written
    upload_id = ingest.parts.begin_upload(key)
    try:
        ingest.parts.put_part(key, upload_id, 1, first)
        count = 1
        for count, piece in enumerate(pieces, 2):
            ingest.parts.put_part(key, upload_id, count, piece)
            written += len(piece)
        ingest.parts.complete(key, upload_id, count)
    except BaseException:
        ingest.parts.abort_upload(key, upload_id)
        raise
    return written


def _pieces(entry: ArchiveEntry, heartbeat: Heartbeat, done: dict[str, Any]) -> Iterator[bytearray]:
    piece, read = bytearray(), 0
    for chunk in entry.chunks():
        read += len(chunk)
        heartbeat({"files": done["files"], "bytes": int(done["bytes"]) + read})
        piece += chunk
        if len(piece) >= PART_BYTES:
            yield piece[:PART_BYTES]
            piece = piece[PART_BYTES:]
    if piece:
        yield piece
