from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.swarm.lab import CountingOrigin, Placement, SwarmTransfers
from tests.unit.swarm.test_fetching import NewHost
from tidegate_client.swarm.port import FILE, load_identity, make_certificate, no_port_reason, pin_of

# A certificate that version 1.0.0 made, without the library.
OLD_CERTIFICATE = Path(__file__).with_name("peer-1.0.0.pem")
# The pin that agents of version 1.0.0 announced for the certificate in OLD_CERTIFICATE.
OLD_PIN = "nVPk-eeSJtQvp-W6_u5vWwqQhXJZnO4YdSUU1eBB5bo"

# A swarm has at least four members. These have no port and never start, so they change nothing.
ABSENT = [Placement("absent-1"), Placement("absent-2")]


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


def test_certificate_of_version_1_0_keeps_its_pin(tmp_path: Path) -> None:
    """Peers of running Jobs know the host by this pin, so an update must not replace the certificate."""
    (tmp_path / FILE).write_bytes(OLD_CERTIFICATE.read_bytes())

    assert load_identity(tmp_path).pin == OLD_PIN
    assert (tmp_path / FILE).read_bytes() == OLD_CERTIFICATE.read_bytes()


def test_hosts_with_old_and_new_certificates_serve_each_other(
    origin: CountingOrigin, new_host: NewHost, tmp_path: Path
) -> None:
    (tmp_path / "old" / "state").mkdir(parents=True)
    (tmp_path / "old" / "state" / FILE).write_bytes(OLD_CERTIFICATE.read_bytes())
    hosts = [new_host("old"), new_host("new")]
    planned = SwarmTransfers.of(origin, changes={"patience": 120.0, "hold": 30.0})
    transfers = planned.make([*(host.placement for host in hosts), *ABSENT])

    with ThreadPoolExecutor(2) as pool:
        figures = list(pool.map(lambda host: host.deliver(transfers[host.agent_id], patience=120.0), hosts))

    assert [host.placement.pin == OLD_PIN for host in hosts] == [True, False]
    assert all(host.published.read_bytes() == origin.content for host in hosts)
    # Each gets about half of the pieces from the other; none of them twice from S3.
    assert sum(one["peer_bytes"] for one in figures) == len(origin.content)
    assert all(one["peer_bytes"] > 0 for one in figures)


def test_host_without_the_library_fetches_from_peers_and_serves_none(
    origin: CountingOrigin,
    new_host: NewHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seed, second = new_host("seed"), new_host("second")
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    without = new_host("without")
    planned = SwarmTransfers.of(origin, changes={"patience": 120.0, "hold": 30.0})
    transfers = planned.make([*(host.placement for host in (seed, second, without)), *ABSENT])
    seed.deliver(transfers["seed"], patience=120.0)
    before = origin.sent

    figures = without.deliver(transfers["without"], patience=120.0)

    assert without.published.read_bytes() == origin.content
    assert (figures["peer_bytes"], figures["fell_back"]) == (len(origin.content), "none")
    assert origin.sent == before + figures["origin_bytes"]
    assert (without.host.presence()["listen"], without.host.presence()["pin"]) == ([], "")
    assert not (tmp_path / "without" / "state" / FILE).exists()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [without.host.no_port] == [no_port_reason()]
    assert "pip install 'tidegate-client[swarm]'" in warnings[0]


def test_host_without_a_port_needs_no_certificate_and_says_nothing(
    new_host: NewHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)

    host = new_host("quiet", listens=False).host

    assert (host.no_port, host.presence()["pin"], caplog.records) == (None, "", [])
    assert not (tmp_path / "quiet" / "state" / FILE).exists()
