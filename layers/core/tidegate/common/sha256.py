"""SHA-256 whose state can be saved, and continued by another process. hashlib cannot do that.

The module uses the libcrypto that Python's own hashlib is linked against. So it is as fast as hashlib, and releases the
GIL, too. AVAILABLE is False if there is no libcrypto, or if libcrypto fails the self-test below. Then a digest must be
made in one pass.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path
from typing import Any

STATE_BYTES = 112
_BLOCK, _DIGEST = 64, 32


class _Context(ctypes.Structure):
    """SHA256_CTX of openssl/sha.h, which is part of OpenSSL's public interface."""

    _fields_ = (
        ("h", ctypes.c_uint32 * 8),
        ("bits_low", ctypes.c_uint32),
        ("bits_high", ctypes.c_uint32),
        ("data", ctypes.c_uint32 * 16),
        ("num", ctypes.c_uint),
        ("md_len", ctypes.c_uint),
    )


def _library() -> Any:
    """Returns libcrypto. None if no usable one is found, as with a Python into which it is built."""
    # On macOS, loading the system's libcrypto by its name ends the process.
    if sys.platform != "linux":
        return None
    for name in (*_mapped(), "libcrypto.so.3", "libcrypto.so.1.1"):
        try:
            found = ctypes.CDLL(name)
            found.SHA256_Init.argtypes = (ctypes.POINTER(_Context),)
            found.SHA256_Update.argtypes = (ctypes.POINTER(_Context), ctypes.c_char_p, ctypes.c_size_t)
            found.SHA256_Final.argtypes = (ctypes.c_char_p, ctypes.POINTER(_Context))
        except (OSError, AttributeError):
            continue
        return found
    return None


def _mapped() -> list[str]:
    """Returns the paths of the libcrypto that this process has loaded. The import of hashlib has loaded it."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps if "/libcrypto" in line}
    return sorted(path for path in paths if path.startswith("/"))


_crypto = _library()


class Sha256:
    def __init__(self) -> None:
        self._context = _Context()
        _succeeded(_crypto.SHA256_Init(self._context))

    def update(self, data: bytes) -> None:
        _succeeded(_crypto.SHA256_Update(self._context, data, len(data)))

    def digest(self) -> bytes:
        """Returns the digest of all bytes so far. More may follow."""
        copy, made = _Context.from_buffer_copy(self._context), ctypes.create_string_buffer(_DIGEST)
        _succeeded(_crypto.SHA256_Final(made, copy))
        return made.raw

    def hexdigest(self) -> str:
        return self.digest().hex()

    def save(self) -> bytes:
        return bytes(self._context)

    @classmethod
    def restore(cls, state: bytes, length: int) -> Sha256:
        """Returns a digest that continues a saved state.

        ValueError if `state` is not the state after `length` bytes.
        """
        restored = cls()
        if len(state) != STATE_BYTES:
            raise ValueError(f"a SHA-256 state has {STATE_BYTES} bytes, not {len(state)}")
        context = _Context.from_buffer_copy(state)
        hashed = (context.bits_high << 32 | context.bits_low) // 8
        if (hashed, context.num, context.md_len) != (length, length % _BLOCK, _DIGEST):
            raise ValueError(f"the SHA-256 state is that of {hashed} bytes, not of {length}")
        restored._context = context
        return restored


def _succeeded(answer: int) -> None:
    if answer != 1:
        raise RuntimeError("libcrypto could not calculate a SHA-256")


def _works() -> bool:
    """Whether a digest that is saved and then continued equals the digest of hashlib."""
    if _crypto is None or ctypes.sizeof(_Context) != STATE_BYTES:
        return False
    content = bytes(range(256)) * 5
    try:
        for cut in (0, 1, 63, 64, 200, len(content)):
            first = Sha256()
            first.update(content[:cut])
            then = Sha256.restore(first.save(), cut)
            then.update(content[cut:])
            if then.digest() != hashlib.sha256(content).digest():
                return False
    except (ValueError, RuntimeError):
        return False
    return True


AVAILABLE = _works()
