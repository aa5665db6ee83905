"""Archives of releases. Each is unpacked to `releases/<number>`; a symlink `current` leads to the active tree.

An archive may be malicious. So it is unpacked within limits, into a directory that nobody else can enter, and no
symlink is followed. Afterwards the tree belongs to the release's user, who can change it at any moment. So its content
is read again before it is used again."""

from __future__ import annotations

import bz2
import contextlib
import ctypes
import errno
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import time
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from tidegate_client.agent.disk import (
    DIRECTORY,
    OPEN,
    Owner,
    Place,
    create_hidden,
    has_content,
    remove_below,
    set_owner,
)
from tidegate_client.agent.journal import HiddenFile, TreeRow
from tidegate_client.uploads import CHUNK

CURRENT, RELEASES = "current", "releases"
MOST_ENTRIES = 100_000
MOST_BYTES = 10 * 2**30
LONGEST_PATH, LONGEST_NAME, DEEPEST = 1024, 255, 64
MOST_LINKS = 40
# The most that tarfile and zipfile may read at once: headers, and the directory of a zip. The archive sets their sizes.
# zipfile makes an object of half a kilobyte from 50 bytes of it, and the service may use 512 MiB.
LARGEST_TAR_HEADER, LARGEST_ZIP_DIRECTORY = CHUNK, 16 * 2**20
# Steps in following all symlinks of an archive: each may lead over others.
MOST_STEPS = 2_000_000
# Free space that is left on the disk.
RESERVE_BYTES = 64 * 2**20
SPACE_EVERY = 64 * 2**20
FILE, FOLDER, LINK = "f", "d", "l"
WRITABLE_BY_OTHERS = 0o022


class RefusedArchive(Exception):
    """The archive cannot be unpacked, or is not safe to unpack."""


@dataclass
class Entry:
    """A file, directory or symlink of a tree. `content`: the SHA-256 of a file, or the target of a symlink.

    `seen`: what `stat` returned when the content was last verified; None if the content has to be read."""

    path: str
    kind: str
    mode: int
    size: int = 0
    content: str = ""
    seen: list[int] | None = None


def to_blob(entries: Sequence[Entry]) -> bytes:
    return zlib.compress(json.dumps([list(vars(entry).values()) for entry in entries]).encode(), 1)


def from_blob(blob: bytes) -> list[Entry]:
    return [Entry(*values) for values in json.loads(zlib.decompress(blob))]


# --- reading archives


class _Forward(io.RawIOBase):
    """A file that can only be read forwards. Both its total size and the size of each read are limited."""

    def __init__(self, file: BinaryIO, at_once: int, most: int) -> None:
        self._file, self._at_once, self._left, self._position = file, at_once, most, 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset < self._position:
            raise RefusedArchive("it cannot be read from its beginning to its end")
        while self._position < offset and self.read(min(CHUNK, offset - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._at_once:
            raise RefusedArchive("it has a header that is too large")
        data = self._file.read(size)
        self._position += len(data)
        self._left -= len(data)
        if self._left < 0:
            raise RefusedArchive(f"it has more than {MOST_BYTES} bytes")
        return data


class _Found(NamedTuple):
    """An entry of an archive.

    `open` returns the entry's content; `link` is the target of a symlink or of a hard link."""

    name: str
    kind: str
    mode: int
    size: int = 0
    time: float = 0
    link: str = ""
    open: Callable[[], Any] = io.BytesIO
    is_hard_link: bool = False


def _of_tar(archive: BinaryIO) -> Iterator[_Found]:
    archive.seek(0)
    first = archive.read(3)
    archive.seek(0)
    stream: Any = archive
    if first[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=archive)
    elif first == b"BZh":
        stream = bz2.BZ2File(archive)
    # Headers and padding of every entry count too, so an archive of empty entries cannot be endless.
    reader = _Forward(stream, LARGEST_TAR_HEADER, MOST_BYTES + 3 * 1024 * MOST_ENTRIES)
    with tarfile.TarFile(fileobj=reader, mode="r", errors="surrogateescape") as tar:
        if tar.firstmember is None:  # type: ignore[attr-defined]
            return  # Before 3.11, `next` would seek backwards.
        while (one := tar.next()) is not None:
            # tarfile would keep all entries in memory.
            tar.members = []  # type: ignore[attr-defined]
            # Headers that apply to all later entries; tarfile would collect them.
            if sum(len(name) + len(value) for name, value in tar.pax_headers.items()) > LARGEST_TAR_HEADER:
                raise RefusedArchive("it has a header that is too large")
            if one.isfile() and not one.issparse():

                def content(one: tarfile.TarInfo = one) -> Any:
                    return tar.extractfile(one)

                yield _Found(one.name, FILE, one.mode, one.size, one.mtime, open=content)
            elif one.isdir():
                yield _Found(one.name, FOLDER, one.mode)
            elif one.issym():
                yield _Found(one.name, LINK, 0o777, link=one.linkname)
            elif one.islnk():
                yield _Found(one.name, FILE, one.mode, link=one.linkname, is_hard_link=True)
            else:
                what = "a sparse file" if one.issparse() else "no file, directory or link"
                raise RefusedArchive(f"{one.name!r} in it is {what}")


class _LimitedReads(io.BufferedReader):
    def read(self, size: int | None = -1) -> bytes:
        data = super().read(LARGEST_ZIP_DIRECTORY + 1 if size is None or size < 0 else size)
        if len(data) > LARGEST_ZIP_DIRECTORY:
            raise RefusedArchive("its directory is too large")
        return data


def _of_zip(archive: BinaryIO) -> Iterator[_Found]:
    again = io.FileIO(os.dup(archive.fileno()), "rb")
    with _LimitedReads(again) as limited, zipfile.ZipFile(limited) as found:
        for one in found.infolist():
            mode = one.external_attr >> 16
            if one.flag_bits & 0x1:
                raise RefusedArchive(f"{one.filename!r} in it is encrypted")
            if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise RefusedArchive(f"{one.filename!r} in it is compressed in another way than deflate")
            kind = stat.S_IFMT(mode)
            if one.is_dir() or kind == stat.S_IFDIR:
                yield _Found(one.filename.rstrip("/"), FOLDER, mode)
            elif kind == stat.S_IFLNK:
                if one.file_size > LONGEST_PATH:
                    raise RefusedArchive(f"{one.filename!r} in it is a symlink that is too long")
                yield _Found(one.filename, LINK, 0o777, link=os.fsdecode(found.read(one)))
            elif kind in (0, stat.S_IFREG):
                made = 0.0
                with contextlib.suppress(ValueError, OverflowError):
                    made = time.mktime((*one.date_time, 0, 0, -1))

                def content(one: zipfile.ZipInfo = one) -> Any:
                    return found.open(one)

                yield _Found(one.filename, FILE, mode, one.file_size, made, open=content)
            else:
                raise RefusedArchive(f"{one.filename!r} in it is no file, directory or link")


def _parts(name: str) -> tuple[str, ...]:
    """Splits the name of an entry; raises RefusedArchive if it is absolute, has a '..', or is not a valid name."""
    shown = repr(name[:200])
    if name.startswith("/"):
        raise RefusedArchive(f"{shown} in it is an absolute name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise RefusedArchive(f"{shown} in it has a '..'")
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError as error:
        raise RefusedArchive(f"{shown} in it is not UTF-8") from error
    if not all(part.isprintable() for part in parts):
        raise RefusedArchive(f"{shown} in it has characters that cannot be printed")
    if len(parts) > DEEPEST or sum(map(len, encoded)) + len(parts) > LONGEST_PATH:
        raise RefusedArchive(f"{shown} in it is too long or too deep")
    if any(len(part) > LONGEST_NAME for part in encoded):
        raise RefusedArchive(f"{shown} in it is too long")
    return parts


# --- unpacking


@dataclass
class _Unpacking:
    """Writes the entries of an archive into a directory. No other user can enter the directory until it is complete."""

    root: int
    owner: Owner
    entries: dict[str, Entry] = field(default_factory=dict)
    left: int = field(default_factory=lambda: MOST_BYTES)
    _folded: set[str] = field(default_factory=set)
    _unchecked: int = SPACE_EVERY

    def add(self, found: _Found) -> None:
        parts = _parts(found.name)
        if not parts:
            if found.kind == FOLDER:
                return
            raise RefusedArchive("a name in it is empty")
        self._make_folders(parts[:-1])
        path = "/".join(parts)
        known = self.entries.get(path)
        if known is not None and known.kind == found.kind == FOLDER:
            known.mode = _folder_mode(found.mode)
            return
        if found.kind == FOLDER:
            self._make_folder(path, found.mode)
        elif found.kind == LINK:
            if len(found.link) > LONGEST_PATH:
                raise RefusedArchive(f"{path!r} in it is a symlink that is too long")
            # Symlinks are created last, so that nothing is written through one.
            self._note(Entry(path, LINK, 0o777, content=found.link))
        elif found.is_hard_link:
            self._link(path, found)
        else:
            self._write(path, found)

    def _note(self, entry: Entry) -> Entry:
        # On some file systems two such names are the same file.
        folded = unicodedata.normalize("NFC", entry.path.casefold())
        if folded in self._folded:
            raise RefusedArchive(f"{entry.path!r} is in it twice, perhaps with other capitals or accents")
        if len(self.entries) >= MOST_ENTRIES:
            raise RefusedArchive(f"it has more than {MOST_ENTRIES} entries")
        self._folded.add(folded)
        self.entries[entry.path] = entry
        return entry

    def _make_folders(self, parts: Sequence[str]) -> None:
        for number in range(1, len(parts) + 1):
            path = "/".join(parts[:number])
            known = self.entries.get(path)
            if known is None:
                self._make_folder(path, 0o755)
            elif known.kind != FOLDER:
                raise RefusedArchive(f"{path!r} in it is a directory, and something else")

    def _make_folder(self, path: str, mode: int) -> None:
        self._note(Entry(path, FOLDER, _folder_mode(mode)))
        with _above(self.root, path) as (directory, name):
            os.mkdir(name, 0o700, dir_fd=directory)

    def _write(self, path: str, found: _Found) -> None:
        if found.mode & (stat.S_ISUID | stat.S_ISGID):
            raise RefusedArchive(f"{path!r} in it is setuid or setgid")
        mode = found.mode & 0o777 & ~WRITABLE_BY_OTHERS or 0o644
        entry = self._note(Entry(path, FILE, mode))
        digest = hashlib.sha256()
        with _above(self.root, path) as (directory, name), found.open() as content:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN, 0o600, dir_fd=directory)
            with os.fdopen(descriptor, "wb") as file:
                while chunk := content.read(CHUNK):
                    self._charge(len(chunk))
                    digest.update(chunk)
                    file.write(chunk)
                    entry.size += len(chunk)
                file.flush()
                set_owner(descriptor, self.owner)
                os.fchmod(descriptor, mode)
                if 0 < found.time < 2**32:
                    os.utime(descriptor, (found.time, found.time))
        if entry.size != found.size:
            raise RefusedArchive(f"{path!r} in it is cut short")
        entry.content = digest.hexdigest()

    def _charge(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RefusedArchive(f"it has more than {MOST_BYTES} bytes")
        self._unchecked += count
        if self._unchecked >= SPACE_EVERY:
            self._unchecked = 0
            disk = os.fstatvfs(self.root)
            if disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _link(self, path: str, found: _Found) -> None:
        known = self.entries.get("/".join(_parts(found.link)))
        if known is None or known.kind != FILE:
            raise RefusedArchive(f"{path!r} in it is a hard link to no file before it")
        self._charge(known.size)
        self._note(Entry(path, FILE, known.mode, known.size, known.content))
        with _above(self.root, known.path) as (source, former), _above(self.root, path) as (directory, name):
            os.link(former, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)

    def finish(self) -> list[Entry]:
        """Creates the symlinks, gives everything to its owner, and syncs it to disk."""
        links = {entry.path: entry.content for entry in self.entries.values() if entry.kind == LINK}
        steps = MOST_STEPS
        for path, target in links.items():
            steps -= _require_inside(path, target, links, steps)
            with _above(self.root, path) as (directory, name):
                os.symlink(target, name, dir_fd=directory)
                os.chown(name, *self.owner, dir_fd=directory, follow_symlinks=False)
        for entry in self.entries.values():
            if entry.kind == FOLDER:
                with _folder(self.root, entry.path) as directory:
                    set_owner(directory, self.owner)
                    os.fchmod(directory, entry.mode)
        set_owner(self.root, self.owner)
        os.fchmod(self.root, 0o755)
        for entry in self.entries.values():
            if entry.kind == FILE:
                with _above(self.root, entry.path) as (directory, name):
                    entry.seen = _seen(os.stat(name, dir_fd=directory, follow_symlinks=False))
        _sync(self.root)
        return list(self.entries.values())


def _folder_mode(mode: int) -> int:
    return (mode & 0o777 & ~WRITABLE_BY_OTHERS or 0o755) | 0o700


def _require_inside(path: str, target: str, links: dict[str, str], most_steps: int = MOST_STEPS) -> int:
    """Follows a symlink and returns the number of steps.

    Raises RefusedArchive if the symlink leads out of the tree, or takes too many steps."""
    place, left, followed, steps = path.split("/")[:-1], [target], 0, 0
    while left:
        steps += 1
        # No directory of the tree is deeper.
        if steps > most_steps or len(place) > DEEPEST:
            raise RefusedArchive(f"the symlink {path!r} in it, or all of them together, take too long to follow")
        text = left.pop()
        if text.startswith("/") or "\0" in text or len(os.fsencode(text)) > LONGEST_PATH or not text:
            raise RefusedArchive(f"the symlink {path!r} in it leads to {target[:200]!r}")
        first, _, rest = text.partition("/")
        if rest.strip("/"):
            left.append(rest.lstrip("/"))
        if first in ("", "."):
            continue
        if first == "..":
            if not place:
                raise RefusedArchive(f"the symlink {path!r} in it leads out of it, to {target[:200]!r}")
            place.pop()
        elif (further := links.get("/".join([*place, first]))) is not None:
            followed += 1
            if followed > MOST_LINKS:
                raise RefusedArchive(f"the symlink {path!r} in it leads to itself, or over too many others")
            left.append(further)
        else:
            place.append(first)
    return steps


def _sync(root: int) -> None:
    """Syncs the whole file system with one call, because an `fsync` for each file would take minutes."""
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL(None).syncfs(root) == 0:
            return
    os.sync()


@contextlib.contextmanager
def _folder(root: int, path: str) -> Iterator[int]:
    """Opens a directory of the tree without following symlinks."""
    opened = os.dup(root)
    try:
        for part in filter(None, path.split("/")):
            deeper = os.open(part, DIRECTORY, dir_fd=opened)
            os.close(opened)
            opened = deeper
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def _above(root: int, path: str) -> Iterator[tuple[int, str]]:
    above, _, name = path.rpartition("/")
    with _folder(root, above) as directory:
        yield directory, name


def unpack(archive: BinaryIO, kind: str, root: int, owner: Owner) -> list[Entry]:
    """Unpacks an archive into an open, empty directory that others cannot enter, and gives everything to the owner.

    Raises RefusedArchive if the archive is damaged, too large, or has entries that are not allowed."""
    unpacking = _Unpacking(root, owner)
    try:
        for found in _of_zip(archive) if kind == "zip" else _of_tar(archive):
            unpacking.add(found)
        if not unpacking.entries:
            raise RefusedArchive("it is empty")
        return unpacking.finish()
    except OSError as error:
        # gzip raises this for a file of another format; before 3.11, zipfile seeks to any offset the archive names.
        if error.errno in (None, errno.EINVAL):
            raise RefusedArchive(f"it cannot be read: {error}") from error
        raise
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise RefusedArchive(f"it cannot be read: {error}") from error
    except (NotImplementedError, OverflowError, RuntimeError) as error:
        raise RefusedArchive(f"it cannot be read: {error}") from error


# --- trees on the disk


def stage(place: Place, hidden: HiddenFile, archive: BinaryIO, kind: str) -> list[Entry]:
    """Unpacks an archive into a hidden directory in `releases`, the directory that `place` opened.

    If that fails, deletes what was unpacked."""
    with create_hidden(place.directory, hidden) as part:
        os.unlink(hidden.secret, dir_fd=part.directory)
        os.mkdir(hidden.secret, 0o700, dir_fd=part.directory)
        try:
            root = os.open(hidden.secret, DIRECTORY, dir_fd=part.directory)
            try:
                return unpack(archive, kind, root, place.owner)
            finally:
                os.close(root)
        except Exception:
            with contextlib.suppress(OSError):
                remove_below(part.directory, hidden.secret, (os.geteuid(), place.owner[0]))
            raise


def free_name(place: Place, number: int) -> str:
    """Returns an unused name for the tree's directory, such as `7`, or `7-2` if the name `7` is taken."""
    with os.scandir(place.directory) as entries:
        taken = {entry.name for entry in entries}
    names = [str(number), *(f"{number}-{again}" for again in range(2, 1000))]
    return next((name for name in names if name not in taken), names[-1])


def move_into_place(place: Place, row: TreeRow) -> bool:
    """Renames an unpacked tree to its final name, unless that was done before. Returns False if the tree is gone."""
    hidden = row.hidden.path.name
    unpacked = f"{hidden}/{row.hidden.secret}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(unpacked, row.path.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    with contextlib.suppress(OSError):
        os.rmdir(hidden, dir_fd=place.directory)
    os.fsync(place.directory)
    try:
        found = os.stat(row.path.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode)


def leads_to(place: Place) -> str | None:
    """Returns the target of the symlink `current`.

    Returns None if there is nothing of this name, and "" if it is not a symlink."""
    try:
        return os.readlink(CURRENT, dir_fd=place.directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return ""


def point(place: Place, target: str | None, hidden: HiddenFile) -> None:
    """Makes the symlink `current` lead to `target`, atomically. If `target` is None, removes the symlink.

    `hidden`: where the new symlink is created before it gets its name."""
    if leads_to(place) == target:
        return
    if target is None:
        os.unlink(CURRENT, dir_fd=place.directory)
    else:
        with create_hidden(place.directory, hidden) as part:
            os.unlink(hidden.secret, dir_fd=part.directory)
            try:
                os.symlink(target, hidden.secret, dir_fd=part.directory)
                os.chown(hidden.secret, *place.owner, dir_fd=part.directory, follow_symlinks=False)
                place.require_there()
                os.rename(hidden.secret, CURRENT, src_dir_fd=part.directory, dst_dir_fd=place.directory)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(hidden.secret, dir_fd=part.directory)
                with contextlib.suppress(OSError):
                    os.rmdir(hidden.path.name, dir_fd=place.directory)
    os.fsync(place.directory)


# --- what became of a tree


def _seen(found: os.stat_result) -> list[int]:
    # The ctime: it changes with anything about the file, and no user can set it.
    return [found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns]


def look(
    place: Place,
    row: TreeRow,
    entries: Sequence[Entry],
    *,
    read_all: bool,
    throttle: Callable[[int], None] = lambda _count: None,
) -> tuple[list[str], bool]:
    """Returns the changes that somebody made to a tree, and whether `entries` was updated.

    Reads only files whose metadata changed; with `read_all`, reads every file. Files that are not in `entries` are not
    reported, because programs write files beside their own."""
    try:
        root = os.open(row.path.name, DIRECTORY, dir_fd=place.directory)
    except OSError:
        return ["removed, or replaced by something else"], False
    changes, renewed = [], False
    try:
        for entry in entries:
            said, seen = _look_at(root, entry, place.owner, read_all, throttle)
            if said:
                changes.append(f"{entry.path}: {said}")
            elif seen != entry.seen:
                entry.seen, renewed = seen, True
    finally:
        os.close(root)
    return changes, renewed


def _look_at(
    root: int, entry: Entry, owner: Owner, read_all: bool, throttle: Callable[[int], None]
) -> tuple[str, list[int] | None]:
    try:
        with _above(root, entry.path) as (directory, name):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_IFMT(found.st_mode) != {FILE: stat.S_IFREG, FOLDER: stat.S_IFDIR, LINK: stat.S_IFLNK}[entry.kind]:
                return "replaced by something else", None
            if entry.kind == LINK:
                same = os.readlink(name, dir_fd=directory) == entry.content
                return "" if same else "leads elsewhere", None
            if entry.kind == FILE and (read_all or _seen(found) != entry.seen):
                descriptor = os.open(name, os.O_RDONLY | OPEN, dir_fd=directory)
                with os.fdopen(descriptor, "rb") as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode) or not has_content(file, entry.content, entry.size, throttle):
                        return "its content was changed", None
            if (found.st_uid, found.st_gid) != owner or stat.S_IMODE(found.st_mode) != entry.mode:
                mode = stat.S_IMODE(found.st_mode)
                return f"owner or mode were changed: uid {found.st_uid}, gid {found.st_gid}, mode {mode:04o}", None
            return "", _seen(found) if entry.kind == FILE else None
    except OSError:
        return "removed", None
