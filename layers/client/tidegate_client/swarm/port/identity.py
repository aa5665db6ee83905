"""The host's certificate for its peers: self-signed, created once, and pinned by its SHA-256.

The standard library can use a certificate but not create one. Peers check only its digest, not its signature, dates or
names, so all that is needed is a P-256 key pair in the format that OpenSSL reads.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

FILE = "peer.pem"

# NIST P-256: the prime of its field, the order of its group, and the generator.
_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_EC_PUBLIC_KEY = bytes.fromhex("06072a8648ce3d0201")
_PRIME256V1 = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("0603550403")
_Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Identity:
    path: Path
    pin: str

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.path)
        # No session tickets: every connection makes a full handshake.
        context.num_tickets = 0
        return context


def client_context() -> ssl.SSLContext:
    """Verifies no certificate: the caller compares it with the pin before it sends anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def pin_of(certificate: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).decode().rstrip("=")


def load_identity(directory: Path) -> Identity:
    """Loads the identity in the directory, and creates it if there is none that can be used."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / FILE
    try:
        return _read(path)
    except (OSError, ValueError, ssl.SSLError):
        _write(path, make_certificate())
        return _read(path)


def _read(path: Path) -> Identity:
    text = path.read_text("ascii")
    start = text.index("-----BEGIN CERTIFICATE-----")
    identity = Identity(path, pin_of(ssl.PEM_cert_to_DER_cert(text[start:])))
    identity.server_context()
    return identity


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        os.fsync(file.fileno())
    new.replace(path)


def make_certificate() -> str:
    """A new private key and its certificate, both in PEM format."""
    private = secrets.randbelow(_N - 1) + 1
    x, y = _multiply(private)
    public = b"\0\4" + x.to_bytes(32) + y.to_bytes(32)
    key_info = _der(0x30, _der(0x30, _EC_PUBLIC_KEY, _PRIME256V1), _der(0x03, public))
    name = _der(0x30, _der(0x31, _der(0x30, _COMMON_NAME, _der(0x0C, b"tidegate peer"))))
    dates = _der(0x30, _der(0x18, b"20200101000000Z"), _der(0x18, b"99991231235959Z"))
    serial = _integer(secrets.randbits(127) + 1)
    body = _der(0x30, serial, _ECDSA_SHA256, name, dates, name, key_info)
    certificate = _der(0x30, body, _ECDSA_SHA256, _der(0x03, b"\0" + _sign(private, body)))
    key = _der(
        0x30,
        _integer(1),
        _der(0x04, private.to_bytes(32)),
        _der(0xA0, _PRIME256V1),
        _der(0xA1, _der(0x03, public)),
    )
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _pem(label: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode().replace("\n", "")
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    octets = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(octets)]) + octets + content


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _sign(private: int, message: bytes) -> bytes:
    hashed = int.from_bytes(hashlib.sha256(message).digest())
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        r = _multiply(nonce)[0] % _N
        s = pow(nonce, -1, _N) * (hashed + r * private) % _N
        if r and s:
            return _der(0x30, _integer(r), _integer(s))


def _multiply(factor: int) -> tuple[int, int]:
    total: _Point = None
    addend: _Point = _G
    while factor:
        if factor & 1:
            total = _add(total, addend)
        addend = _add(addend, addend)
        factor >>= 1
    if total is None:
        raise ValueError("the factor is a multiple of the group's order")
    return total


def _add(one: _Point, other: _Point) -> _Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    tangent = one == other
    slope = 3 * (x1 * x1 - 1) * pow(2 * y1, -1, _P) if tangent else (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P
