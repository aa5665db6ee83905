from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from tidegate_client.swarm.port.identity import FILE, load_identity, make_certificate, pin_of


def test_certificate_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    made = load_identity(tmp_path / "state")
    assert load_identity(tmp_path / "state") == made
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o600
    assert len(made.pin) == 43


@pytest.mark.parametrize("spoiled", ["", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"])
def test_invalid_certificate_file_is_replaced(tmp_path: Path, spoiled: str) -> None:
    (tmp_path / FILE).write_text(spoiled)
    made = load_identity(tmp_path)
    assert made.server_context().minimum_version == ssl.TLSVersion.TLSv1_3
    assert load_identity(tmp_path) == made


def test_every_new_certificate_is_different() -> None:
    pems = [make_certificate() for _ in range(3)]
    pins = {pin_of(ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :])) for pem in pems}
    assert len(pins) == 3


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_openssl_accepts_key_and_signature(tmp_path: Path) -> None:
    path = str(load_identity(tmp_path).path)
    for words in (["verify", "-CAfile", path, path], ["ec", "-in", path, "-check", "-noout"]):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
