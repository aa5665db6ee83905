"""Agents with and without a swarm."""

from __future__ import annotations

import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import idle_clock
from tests.support.swarm.lab import CountingOrigin, Placement, SwarmTransfers, next_release
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, AgentApi, Store, sha256
from tidegate_client.agent.preheat import iso
from tidegate_client.cli import build_parser
from tidegate_client.cli.commands.agent import _swarm
from tidegate_client.swarm.host import SwarmOptions
from tidegate_client.swarm.session import Phase

CONTENT = random.Random(5).randbytes(9 << 20)


def listener(**changes: Any) -> SwarmOptions:
    return SwarmOptions(listen=(("127.0.0.1", 0),), site="dc1", zone="rack1", **changes)


def block(origin: CountingOrigin) -> dict[str, Any]:
    """The swarm of a transfer whose other members have not started."""
    fleet = [Placement(name, (f"127.0.0.1:{closed_port()}",), "p" * 43) for name in (AGENT, "b", "c", "d")]
    found: dict[str, Any] = SwarmTransfers.of(origin).make(fleet)[AGENT]["swarm"]
    return found


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_agent_reports_its_presence_and_the_source_of_its_bytes(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    origin = CountingOrigin(CONTENT)
    transfer = api.add("large.bin", CONTENT, swarm=block(origin))
    api.transfers[transfer]["url"] = origin.url

    start_agent(swarm=listener(upload_rate=1e6), patience=30.0)

    result = api.wait_for(transfer, seconds=40)
    assert result["error_code"] == 0, result
    assert (root / "data/large.bin").read_bytes() == CONTENT
    assert result["swarm"]["origin_bytes"] == len(CONTENT) + len(origin.listed)
    assert result["size"] == result["swarm"]["origin_bytes"]
    (presence,) = api.presences
    place = presence["site"], presence["zone"], presence["upload_mbit"], presence["reached"]
    assert place == ("dc1", "rack1", 8.0, True)
    assert len(presence["listen"]) == 1
    origin.close()


def test_pieces_from_s3_share_connections_with_parallel_1(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool that is too small opens a connection for each piece, and logs a warning each time."""
    origin = CountingOrigin(CONTENT)
    transfer = api.add("large.bin", CONTENT, swarm=block(origin))
    api.transfers[transfer]["url"] = origin.url

    with caplog.at_level("WARNING", "urllib3.connectionpool"):
        start_agent(swarm=listener(), patience=30.0, parallel=1)
        assert api.wait_for(transfer, seconds=40)["error_code"] == 0

    assert [record.getMessage() for record in caplog.records if record.name.startswith("urllib3")] == []
    origin.close()


def test_agent_reuses_unchanged_blocks_of_the_replaced_file(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    release = next_release(CONTENT, changed=0.02)
    origin = CountingOrigin(release)
    transfer = api.add("large.bin", release, swarm=block(origin))
    api.transfers[transfer]["url"] = origin.url
    (root / "data").mkdir(parents=True, exist_ok=True)
    (root / "data/large.bin").write_bytes(CONTENT)

    start_agent(swarm=listener(), patience=30.0)

    result = api.wait_for(transfer, seconds=40)
    assert result["error_code"] == 0, result
    assert (root / "data/large.bin").read_bytes() == release
    assert result["swarm"]["reused_bytes"] >= 0.9 * len(release)
    assert result["size"] == result["swarm"]["origin_bytes"] == origin.sent
    assert origin.sent <= 0.1 * len(release) + len(origin.listed) + len(origin.blocks)
    origin.close()


def test_s3_without_ranges_means_a_direct_download(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    origin = CountingOrigin(CONTENT)
    transfer = api.add("large.bin", CONTENT, swarm=block(origin))

    start_agent(swarm=listener(), patience=30.0)

    result = api.wait_for(transfer, seconds=40)
    assert (result["error_code"], result["swarm"]["fell_back"]) == (0, "broken")
    assert result["swarm"]["origin_bytes"] >= len(CONTENT)
    assert (root / "data/large.bin").read_bytes() == CONTENT
    origin.close()


def test_staged_file_is_served_to_peers_before_and_after_the_switch(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    origin = CountingOrigin(CONTENT)
    times = {"activate_at": iso(time.time() + 3600), "activate_until": iso(time.time() + 4200)}
    transfer = api.add("large.bin", CONTENT, swarm=block(origin), sequence=1, mode="0640", **times)
    api.transfers[transfer]["url"] = origin.url
    swarm = start_agent(swarm=listener(), patience=30.0).agent._swarm
    assert swarm is not None
    deadline = idle_clock() + 40
    while not (staged := [one for one in api.results if one.get("staged_at")]):
        assert idle_clock() < deadline
        time.sleep(0.05)
    session = swarm._sessions[api.transfers[transfer]["swarm"]["id"]]
    assert session is not None
    assert session.store is not None
    assert session.phase is Phase.SEEDING
    assert session.store.read(0, 0, 100) == CONTENT[:100]
    assert staged[0]["swarm"]["origin_bytes"] >= len(CONTENT)

    ahead[0] = 3600.0
    result = api.wait_for(transfer)

    assert (result["error_code"], result["swarm"]) == (0, staged[0]["swarm"])
    assert (root / "data/large.bin").stat().st_mode & 0o777 == 0o640
    assert session.store.read(0, 0, 100) == CONTENT[:100]
    origin.close()


def test_agent_without_a_site_reports_no_presence_and_downloads_directly(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    origin = CountingOrigin(CONTENT)
    transfer = api.add("large.bin", CONTENT, swarm=block(origin))

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    assert [wanted for _, wanted in store.requests] == [None]
    assert (api.presences, origin.sent) == ([], 0)
    assert sha256((root / "data/large.bin").read_bytes()) == sha256(CONTENT)
    origin.close()


def test_agent_whose_peer_port_is_taken_only_downloads(
    api: AgentApi, start_agent: StartAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        start_agent(swarm=SwarmOptions(listen=(taken.getsockname(),), site="dc1"))
        deadline = idle_clock() + 10
        while not api.presences and idle_clock() < deadline:
            time.sleep(0.05)
    assert api.presences[0]["listen"] == []


def test_agent_without_the_swarm_extra_warns_once_and_delivers(
    api: AgentApi,
    root: Path,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    origin = CountingOrigin(CONTENT)
    transfer = api.add("large.bin", CONTENT, swarm=block(origin))
    api.transfers[transfer]["url"] = origin.url

    agent = start_agent(swarm=listener(), patience=30.0).agent

    assert api.wait_for(transfer, seconds=40)["error_code"] == 0
    assert (root / "data/large.bin").read_bytes() == CONTENT
    assert [(one["site"], one["listen"], one["pin"]) for one in api.presences] == [("dc1", [], "")]
    health = agent.health()
    # Not a problem: systemd would restart an unhealthy agent every three minutes.
    assert (health["healthy"], health["problems"]) == (True, [])
    (warning,) = health["warnings"]
    assert "pip install 'tidegate-client[swarm]'" in warning
    assert [record.getMessage() for record in caplog.records].count(warning) == 1
    origin.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--no-peers", "--peer-listen", "10.0.0.1:7471"], None),
        (["--site", "dc1"], SwarmOptions((), "dc1")),
        (["--peer-listen", "10.0.0.1:7471"], SwarmOptions((("10.0.0.1", 7471),), "default")),
        (
            ["--peer-listen", "10.0.0.1:7471", "--peer-listen", "[2001:db8::1]:7471", "--site", "s", "--zone", "z"],
            SwarmOptions((("10.0.0.1", 7471), ("2001:db8::1", 7471)), "s", "z"),
        ),
        (["--site", "s", "--peer-upload-rate", "50M"], SwarmOptions((), "s", "", 50 * 1024 * 1024)),
    ],
)
def test_swarm_options_are_parsed(words: list[str], expected: SwarmOptions | None) -> None:
    args = build_parser().parse_args(["agent", "--agent-id", "a", "--root", "/", *words])
    assert _swarm(vars(args)) == expected
