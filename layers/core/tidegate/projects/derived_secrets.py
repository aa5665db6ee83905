"""Derives callback secrets from one root secret, so that none is stored in the table."""

from __future__ import annotations

import base64
import hashlib
import hmac

_INFO = "tidegate callback secret"
_BLOCK = hashlib.sha256().digest_size


def hkdf_sha256(secret: bytes, info: bytes, *, length: int = 32, salt: bytes = b"") -> bytes:
    """HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt or bytes(_BLOCK), secret, "sha256")
    output = block = b""
    for counter in range(1, -(-length // _BLOCK) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


def derived_secret(root: bytes, project_id: str, generation: int) -> str:
    """A project's `whsec_…` of one generation. Always the same; it reveals no other secret."""
    info = "\0".join((_INFO, project_id, str(generation))).encode()
    return "whsec_" + base64.b64encode(hkdf_sha256(root, info)).decode()
