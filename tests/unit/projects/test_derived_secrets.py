"""HKDF as in RFC 5869, and secrets that differ by project and generation."""

from __future__ import annotations

import base64

import pytest

from tidegate.projects.secrets import derived_secret, hkdf_sha256

# RFC 5869, appendix A.1, A.2 and A.3.
VECTORS = [
    (
        "0b" * 22,
        bytes(range(0x0D)).hex(),
        bytes(range(0xF0, 0xFA)).hex(),
        42,
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        82,
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        "0b" * 22,
        "",
        "",
        42,
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


@pytest.mark.parametrize(("secret", "salt", "info", "length", "expected"), VECTORS)
def test_hkdf_gives_the_vectors_of_rfc_5869(secret: str, salt: str, info: str, length: int, expected: str) -> None:
    made = hkdf_sha256(bytes.fromhex(secret), bytes.fromhex(info), length=length, salt=bytes.fromhex(salt))

    assert made.hex() == expected


def test_secret_is_stable_and_differs_by_root_project_and_generation() -> None:
    root = bytes(32)
    made = derived_secret(root, "prj-1", 1)

    assert made == derived_secret(root, "prj-1", 1)
    assert len(base64.b64decode(made.removeprefix("whsec_"))) == 32
    others = [
        derived_secret(root, "prj-1", 2),
        derived_secret(root, "prj-2", 1),
        derived_secret(root, "prj-11", 1),
        derived_secret(root, "prj-1", 11),
        derived_secret(bytes(31) + b"\1", "prj-1", 1),
    ]
    assert len({made, *others}) == 6
