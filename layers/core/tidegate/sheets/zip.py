"""Zip and gzip streams, written from beginning to end without seeking."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.common.sequences import Chunk, Later

# --- zip records
# Headers and directory of a zip. Sizes are known when headers are written, so there are no data descriptors.
#
# Excel refuses a sheet of more than 4 GB if its local header and the directory state different versions; here both are
# made from one entry.

STORED = 0
_UTF8_NAME = 0x0800
_ENCRYPTED = 1
_AES = 99
_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
# 1980-01-01: a fixed date, so that equal rows give equal bytes.
_DATE = 0x21


@dataclass(frozen=True, slots=True)
class ZipEntry:
    name: str
    crc: int
    size: int
    packed: int
    method: int = DEFLATED
    # Whether it is encrypted by AES: `method` is then that of the encrypted bytes.
    encrypted: bool = False

    @property
    def aes(self) -> bytes:
        """The extra field of an encrypted entry: AE-2, AES-256. Empty for other entries."""
        return struct.pack("<3H2sBH", 0x9901, 7, 2, b"AE", 3, self.method) if self.encrypted else b""

    @property
    def needs(self) -> int:
        """The version of the zip format that the entry needs.

        Excel demands that header and directory state the same version.
        """
        return 51 if self.encrypted else 45 if self.big else 20

    @property
    def kind(self) -> tuple[int, int]:
        """The flags and the method that the headers state."""
        return (_UTF8_NAME | _ENCRYPTED, _AES) if self.encrypted else (_UTF8_NAME, self.method)

    @property
    def big(self) -> bool:
        return self.packed >= _MAX32 or self.size >= _MAX32


def local_header(entry: ZipEntry) -> bytes:
    name = entry.name.encode()
    extra = struct.pack("<2H2Q", 1, 16, entry.size, entry.packed) if entry.big else b""
    extra += entry.aes
    sizes = (_MAX32, _MAX32) if entry.big else (entry.packed, entry.size)
    fields = (entry.needs, *entry.kind, 0, _DATE, entry.crc, *sizes, len(name), len(extra))
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name + extra


def directory(entries: Sequence[tuple[ZipEntry, int]], start: int) -> bytes:
    """Returns the directory of the archive. `entries`: each with its offset. `start`: the offset of the directory."""
    records = b"".join(_central_record(entry, offset) for entry, offset in entries)
    end, count = start + len(records), len(entries)
    tail = b""
    if count >= _MAX16 or end >= _MAX32:
        tail = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(records), start)
        tail += struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    short_count = min(count, _MAX16)
    sizes = min(len(records), _MAX32), min(start, _MAX32)
    return records + tail + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, short_count, short_count, *sizes, 0)


def _central_record(entry: ZipEntry, offset: int) -> bytes:
    name, far = entry.name.encode(), offset >= _MAX32
    extra = b""
    if entry.big:
        extra += struct.pack("<2Q", entry.size, entry.packed)
    if far:
        extra += struct.pack("<Q", offset)
    if extra:
        extra = struct.pack("<2H", 1, len(extra)) + extra
    made_by = max(entry.needs, 45 if extra else 20)
    extra += entry.aes
    packed, size = (_MAX32, _MAX32) if entry.big else (entry.packed, entry.size)
    fields = (made_by, entry.needs, *entry.kind, 0, _DATE, entry.crc, packed, size)
    head = struct.pack("<4s6H3I", b"PK\x01\x02", *fields)
    return head + struct.pack("<5H2I", len(name), len(extra), 0, 0, 0, 0, min(offset, _MAX32)) + name + extra


# --- zip stream
# A zip archive written as a stream; only the header of each entry is filled in after its content.
#
# `zipfile` can write to a stream too, but not with ISA-L, which is much faster.

LEVEL = 1
WINDOW = 15
_AES_BYTES = 256 * 1024

Entry = tuple[str, Iterable[Chunk]]


def zip_stream(entries: Iterable[Entry], *, stored: bool = False, password: str | None = None) -> Iterator[Chunk]:
    """Yields the bytes of a zip; the chunks of an entry are read only when they are written.

    With `stored`, entries are not compressed. Stored entries may be archives whose headers are filled in later. With a
    password, entries are encrypted. An entry that is both stored and encrypted is kept in memory as a whole.
    """
    written: list[tuple[ZipEntry, int]] = []
    offset = 0
    for name, chunks in entries:
        header = Later()
        yield header
        content = _Stored(chunks) if stored else _Deflated(chunks)
        if password is None:
            yield from content
            entry = ZipEntry(name, content.crc, content.size, content.packed, content.method)
        else:
            # Headers that are filled in later cannot be encrypted in a stream: their bytes are not known in time.
            aes = _Aes([b"".join(content)] if stored else content, password)
            yield from aes
            entry = ZipEntry(name, 0, content.size, aes.packed, content.method, encrypted=True)
        header.fill(local_header(entry))
        written.append((entry, offset))
        offset += len(header) + entry.packed
    yield directory(written, offset)


class _Deflated:
    method = DEFLATED

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = chunks
        self.crc = self.size = self.packed = 0

    def __iter__(self) -> Iterator[Chunk]:
        """Yields the compressed bytes. A `Later` is compressed alone, so that no other piece refers to its bytes."""
        packer, late = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW), list[tuple[Later, Later]]()
        # The checksum and size of the bytes up to each `Later`, and after the last.
        pieces = [(0, 0)]
        for chunk in self._chunks:
            if isinstance(chunk, Later):
                if pieces[-1][1]:
                    yield (data := packer.flush(isal_zlib.Z_FULL_FLUSH))
                    self.packed += len(data)
                packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
                late.append((chunk, packed := Later()))
                pieces.append((0, 0))
                yield packed
                continue
            crc, size = pieces[-1]
            pieces[-1] = isal_zlib.crc32(chunk, crc), size + len(chunk)
            data = packer.compress(chunk)
            if data:
                self.packed += len(data)
                yield data
        data = packer.flush()
        self.packed += len(data)
        yield data
        self.crc, self.size = pieces[0]
        for (chunk, packed), (crc, size) in zip(late, pieces[1:], strict=True):
            packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
            packed.fill(packer.compress(chunk) + packer.flush(isal_zlib.Z_FULL_FLUSH))
            self.packed += len(packed)
            for part, length in ((isal_zlib.crc32(chunk), len(chunk)), (crc, size)):
                self.crc = isal_zlib.crc32_combine(self.crc, part, length)
                self.size += length


class _Stored:
    method = STORED

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = chunks
        self.crc = self.size = self.packed = 0

    def __iter__(self) -> Iterator[Chunk]:
        pieces = list[Later | tuple[int, int]]()
        for chunk in self._chunks:
            pieces.append(chunk if isinstance(chunk, Later) else (isal_zlib.crc32(chunk), len(chunk)))
            yield chunk
        for piece in pieces:
            crc, length = (isal_zlib.crc32(piece), len(piece)) if isinstance(piece, Later) else piece
            self.crc = isal_zlib.crc32_combine(self.crc, crc, length)
            self.size += length
        self.packed = self.size


class _Aes:
    """Encrypts an entry in WinZip's format AE-2: a salt, AES-256 in counter mode, and an HMAC."""

    def __init__(self, chunks: Iterable[Chunk], password: str) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        self._chunks, salt = chunks, token_bytes(16)
        # The format fixes SHA-1 and the number of rounds.
        keys = hashlib.pbkdf2_hmac("sha1", password.encode(), salt, 1000, 66)
        # The format has little-endian counters, which the counter mode of libraries has not.
        self._block = Cipher(AES(keys[:32]), ECB()).encryptor()  # noqa: S305 - only encrypts counters
        self._hmac = hmac.new(keys[32:64], digestmod="sha1")
        self._head = salt + keys[64:]
        self._used = 0
        self.packed = len(self._head)

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        for chunk in self._chunks:
            for start in range(0, len(chunk), _AES_BYTES):
                data = self._encrypted(bytes(chunk[start : start + _AES_BYTES]))
                self._hmac.update(data)
                self.packed += len(data)
                yield data
        self.packed += 10
        yield self._hmac.digest()[:10]

    def _encrypted(self, data: bytes) -> bytes:
        skip, first = self._used % 16, self._used // 16 + 1
        blocks = -(-(skip + len(data)) // 16)
        stream = self._block.update(b"".join(n.to_bytes(16, "little") for n in range(first, first + blocks)))
        self._used += len(data)
        mask = int.from_bytes(stream[skip : skip + len(data)], "little")
        return (int.from_bytes(data, "little") ^ mask).to_bytes(len(data), "little")


# --- gzip stream
# A gzip file of a single member, written as a stream.

# No name and no time, so that equal rows give equal bytes. The operating system is "unknown".
HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def trailer(crc: int, size: int) -> bytes:
    return struct.pack("<2I", crc, size & 0xFFFFFFFF)


def gzip_stream(chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield HEADER
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    crc = size = 0
    for chunk in chunks:
        crc = isal_zlib.crc32(chunk, crc)
        size += len(chunk)
        data = packer.compress(chunk)
        if data:
            yield data
    yield packer.flush() + trailer(crc, size)
