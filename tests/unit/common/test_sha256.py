"""A SHA-256 that is saved and continued."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common import sha256
from tidegate.common.sha256 import STATE_BYTES, Sha256

pytestmark = pytest.mark.skipif(not sha256.AVAILABLE, reason="this Python has no libcrypto of its own")


@given(st.binary(max_size=1000), st.lists(st.integers(0, 1000), max_size=6))
def test_continued_digest_is_that_of_one_pass(content: bytes, cuts: list[int]) -> None:
    hashed, at = Sha256(), 0
    for cut in sorted(min(cut, len(content)) for cut in cuts):
        hashed.update(content[at:cut])
        at = cut
        assert hashed.digest() == hashlib.sha256(content[:at]).digest()
        state = hashed.save()
        assert len(state) == STATE_BYTES
        hashed = Sha256.restore(state, at)
    hashed.update(content[at:])

    assert hashed.hexdigest() == hashlib.sha256(content).hexdigest()


@given(st.binary(max_size=300), st.integers(0, 300))
def test_saving_does_not_change_the_digest(content: bytes, cut: int) -> None:
    hashed = Sha256()
    hashed.update(content[:cut])
    Sha256.restore(hashed.save(), len(content[:cut])).update(b"something else")
    hashed.update(content[cut:])

    assert hashed.digest() == hashlib.sha256(content).digest()


def test_state_beyond_4_gib_is_continued() -> None:
    """The length is kept in bits, in two words. Hashing that much would take seconds, so the words are set here."""
    length = (5 << 40) + 64
    hashed = Sha256()
    hashed._context.bits_low, hashed._context.bits_high = length * 8 & 0xFFFFFFFF, length * 8 >> 32

    assert Sha256.restore(hashed.save(), length).save() == hashed.save()


@pytest.mark.parametrize("state", [b"", bytes(STATE_BYTES - 1), bytes(STATE_BYTES)])
def test_malformed_state_is_refused(state: bytes) -> None:
    with pytest.raises(ValueError, match="SHA-256 state"):
        Sha256.restore(state, 7)


def test_state_of_another_length_is_refused() -> None:
    hashed = Sha256()
    hashed.update(b"tide")

    with pytest.raises(ValueError, match="of 4 bytes, not of 5"):
        Sha256.restore(hashed.save(), 5)


def test_library_that_fails_the_self_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sha256, "digest", lambda self: bytes(32))
    assert not sha256._works()
    monkeypatch.setattr(sha256, "_crypto", None)
    assert not sha256._works()


def test_library_is_that_of_hashlib() -> None:
    """In a process of its own: the path comes from what hashlib has loaded, without the linker's cache."""
    code = "from tidegate.common import sha256; print(sha256._mapped(), sha256._crypto._name)"
    shown = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    mapped, _, name = shown.stdout.decode().strip().rpartition(" ")

    assert mapped in ("[]", f"['{name}']"), shown.stderr
