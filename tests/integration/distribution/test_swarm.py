"""Swarms on the server: from the presence of agents to their swarm blocks, and from their figures to the Job."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.distribution import swarm as swarm_module
from tidegate.distribution.swarm import DEGREE
from tidegate.files import reading
from tidegate.files import reading as verify
from tidegate.files.model import MIB
from tidegate.files.reading import SMALLEST_FILE, blocks_object, pieces_object, saved_for_content
from tidegate_client.swarm.store import BlockList
from tidegate_client.swarm.wire import authorization, caller_of, read_terms

PIN = "p" * 43
LARGE = random.Random(1).randbytes(SMALLEST_FILE + 5)
AGENTS = [f"a-{n}" for n in range(6)]


def report_presence(fleet: Fleet, agent_id: str, **changes: Any) -> Any:
    number = int(agent_id.rsplit("-", 1)[-1])
    body = {"listen": [f"10.0.{number >> 8}.{number & 255}:7471"], "site": "dc1", "zone": "rack1", "pin": PIN} | changes
    return fleet.cloud.http("PUT", f"/v1/agents/{agent_id}/presence", json=body, key=fleet.key_of(agent_id))


@pytest.fixture
def large(fleet: Fleet) -> Fleet:
    """A fleet whose agents have reported their presence, and a file large enough for a swarm."""
    fleet.signature = fleet.store(LARGE)
    for agent_id in AGENTS:
        assert report_presence(fleet, agent_id).status == 200
    return fleet


def dispatched(fleet: Fleet, agents: list[str] = AGENTS, **more: Any) -> str:
    job_id = str(fleet.submit_many(agents, **more)["job_id"])
    fleet.run_until_dispatched(job_id)
    return job_id


def swarm_of(fleet: Fleet, agent_id: str) -> dict[str, Any] | None:
    (item,) = fleet.inbox(agent_id)
    found: dict[str, Any] | None = item["swarm"]
    return found


def test_every_host_gets_peers_and_tokens_that_they_accept(large: Fleet) -> None:
    dispatched(large)

    transfers = {agent: large.inbox(agent)[0] for agent in AGENTS}
    terms = {agent: read_terms(item["swarm"], item["size"]) for agent, item in transfers.items()}

    assert sorted(one.number for one in terms.values()) == list(range(6))
    assert len({one.id for one in terms.values()}) == 1
    for agent, one in terms.items():
        assert {peer.id for peer in one.peers} == set(AGENTS) - {agent}
        assert one.layout.count == -(-len(LARGE) // one.layout.piece_size)
        assert one.age < 60
        assert 0 < one.lasts <= large.cloud.app.distribution.windows.job_timeout
        for peer in one.peers:
            header = authorization(agent, peer.token)
            assert caller_of(header, one.id, terms[peer.id].accept) == agent
            # No other host accepts the token, and no other caller can use it.
            others = [name for name in AGENTS if name != peer.id]
            assert all(caller_of(header, one.id, terms[name].accept) is None for name in others)
            forged = authorization("a-99", peer.token)
            assert caller_of(forged, one.id, terms[peer.id].accept) is None


def test_piece_list_is_stored_before_a_transfer_names_it(large: Fleet) -> None:
    dispatched(large)

    swarm = swarm_of(large, "a-0")
    assert swarm is not None
    bucket = large.cloud.app.files.bucket
    _, chunks = bucket.read(pieces_object(large.project.id, large.signature))
    listed = b"".join(chunks)
    assert hashlib.sha256(listed).hexdigest() == swarm["pieces_sha256"]
    size = swarm["piece_size"]
    expected = [hashlib.sha256(LARGE[at : at + size]).digest() for at in range(0, len(LARGE), size)]
    assert [listed[at : at + 32] for at in range(0, len(listed), 32)] == expected
    assert f"pieces/{large.project.id}/" in swarm["pieces_url"]


def test_block_list_is_stored_and_describes_the_file(large: Fleet) -> None:
    dispatched(large)

    (item,) = large.inbox("a-0")
    swarm = item["swarm"]
    _, chunks = large.cloud.app.files.bucket.read(blocks_object(large.project.id, large.signature))
    listed = b"".join(chunks)
    assert hashlib.sha256(listed).hexdigest() == swarm["blocks_sha256"]
    assert f"{large.signature}.blocks" in swarm["blocks_url"]
    blocks = BlockList(read_terms(swarm, item["size"]).layout, listed)
    contents = (LARGE[blocks.start(n) : blocks.start(n) + blocks.length(n)] for n in range(blocks.count))
    assert all(blocks.is_right(n, content) for n, content in enumerate(contents))


def test_content_without_a_block_list_has_a_swarm_without_delta(large: Fleet) -> None:
    """Content that was stored before there were block lists is not read again for one."""
    app = large.cloud.app
    dispatched(large)
    app.table.write(update(keys.content(large.project.id, large.signature), removes=["blocks_sha256"]))
    with count_calls(app) as calls:
        dispatched(large)
    swarm = large.inbox("a-1")[-1]["swarm"]
    assert (swarm["blocks_sha256"], swarm["blocks_url"]) == (None, None)
    assert calls["s3.GetObject"] == 0


def test_content_without_a_piece_list_is_read_once_more(large: Fleet) -> None:
    app = large.cloud.app
    found = app.files.bucket.head(f"content/{large.project.id}/{large.signature}")
    assert found is not None
    app.files.contents.checked(large.project.id, large.signature, found.etag, None)

    dispatched(large)

    assert swarm_of(large, "a-0") is not None
    with count_calls(app) as calls:
        large.step("prepare_file", large.submit_many(AGENTS)["job_id"])
    assert calls["s3.GetObject"] == 0


def test_file_that_one_invocation_cannot_read_is_continued_by_the_next(large: Fleet) -> None:
    app = large.cloud.app
    app.table.write(update(keys.content(large.project.id, large.signature), removes=["pieces_sha256"]))
    first, second = (str(large.submit_many(AGENTS, target_file_dir=path)["job_id"]) for path in ("/a", "/b"))
    large.collect()
    large.pass_window()
    for job_id in (first, second):
        large.step("close_window", job_id)
    with (
        patch.object(verify, "RANGE", 3 * MIB),
        patch.object(reading, "LARGEST_SINGLE_UPLOAD", MIB),
        patch.object(reading, "RESERVE_SECONDS", 10_000.0),
    ):
        # The second Job goes on with what the first one has read.
        states = [large.step("prepare_file", job_id)["state"] for job_id in (first, second, first, second)]

    assert states == ["waiting", "waiting", "ready", "ready"]
    _, chunks = app.files.bucket.read(pieces_object(large.project.id, large.signature))
    expected = [hashlib.sha256(LARGE[at : at + MIB]).digest() for at in range(0, len(LARGE), MIB)]
    assert b"".join(chunks) == b"".join(expected)
    assert app.files.bucket.head(saved_for_content(large.project.id, large.signature)) is None


@pytest.mark.parametrize(
    "case",
    [
        "small file",
        "few hosts",
        "off for this submit",
        "off for the project",
        "off by a change of the project",
        "free site",
        "in the region",
        "no presence",
    ],
)
def test_transfers_have_no_swarm_without_need_or_permission(large: Fleet, case: str) -> None:
    agents = AGENTS
    more: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if case == "small file":
        large.signature = large.store(b"small")
    elif case == "few hosts":
        agents = AGENTS[:3]
    elif case == "off for this submit":
        more = {"swarm": "off"}
    elif case == "off for the project":
        settings = {"swarm": "off"}
    elif case == "off by a change of the project":
        pass
    elif case == "free site":
        settings = {"free_sites": ["dc1"]}
    elif case == "in the region":
        for agent_id in AGENTS:
            report_presence(large, agent_id, zone="us-east-1a")
    else:
        agents = [f"b-{n}" for n in range(6)]
    if settings:
        path = f"/v1/projects/{large.project.id}/swarm"
        assert large.cloud.http("PUT", path, json=settings, key=large.cloud.admin_key).status == 200
    if case == "off by a change of the project":
        path = f"/v1/projects/{large.project.id}"
        answer = large.cloud.http("PATCH", path, json={"swarm": "off"}, key=large.cloud.admin_key)
        assert (answer.status, answer.json()["swarm"]) == (200, "off")

    dispatched(large, agents, **more)

    assert all(swarm_of(large, agent) is None for agent in agents)


@pytest.mark.parametrize(
    ("zone", "settings"),
    [
        ("us-east-1a", {"swarm": "on"}),
        ("us-east-2a", {}),
        ("us-east-1-bos-1a", {}),
        ("us-east-1", {}),
        ("rack1", {}),
        ("", {}),
    ],
)
def test_hosts_outside_the_region_and_those_asked_for_have_a_swarm(
    large: Fleet, zone: str, settings: dict[str, Any]
) -> None:
    """S3 serves the instances of its region for free; between availability zones every GB costs $0.02."""
    for agent_id in AGENTS:
        report_presence(large, agent_id, zone=zone)
    if settings:
        path = f"/v1/projects/{large.project.id}/swarm"
        assert large.cloud.http("PUT", path, json=settings, key=large.cloud.admin_key).status == 200

    dispatched(large)

    assert all(swarm_of(large, agent) for agent in AGENTS)


def test_presence_expires_after_two_hours(large: Fleet) -> None:
    large.cloud.clock.advance(2 * 3600 + 1)
    dispatched(large)
    assert swarm_of(large, "a-0") is None


def test_agent_record_shows_its_presence(large: Fleet) -> None:
    report_presence(large, "a-3", reached=False)
    large.cloud.http("GET", "/v1/agents/a-3/transfers", key=large.key_of("a-3"))
    shown = large.get("/v1/agents/a-3")
    assert shown["peers"]["listen"] == ["10.0.0.3:7471"]
    assert (shown["peers"]["site"], shown["peers"]["reached"]) == ("dc1", False)
    large.cloud.clock.advance(2 * 3600 + 1)
    assert large.get("/v1/agents/a-3").get("peers") is None


def test_host_that_was_never_reached_only_fetches(large: Fleet) -> None:
    report_presence(large, "a-3", reached=False)
    dispatched(large)
    swarm = swarm_of(large, "a-3")
    assert swarm is not None
    assert (swarm["ranks"], len(swarm["peers"])) == (0, 5)
    other = swarm_of(large, "a-0")
    assert other is not None
    assert "a-3" not in {peer["id"] for peer in other["peers"]}


@pytest.mark.parametrize(
    "listen",
    [
        "8.8.8.8:7471",
        "127.0.0.2:7471",
        "169.254.169.254:8080",
        "10.0.0.1:80",
        "10.0.0.1:65536",
        "10.0.0.1",
        "host.example:7471",
        "[::1]:7471",
        "10.0.0.1:７４７１",
        "",
    ],
)
def test_listen_address_outside_the_networks_is_refused(large: Fleet, listen: str) -> None:
    answer = report_presence(large, "a-0", listen=[listen])
    assert answer.status == 422
    assert answer.json()["errors"][0]["loc"][-1] == "listen"


def test_source_address_and_project_networks_are_accepted(large: Fleet) -> None:
    source = large.cloud._http_event("GET", "/", "", {}, None)["requestContext"]["http"]["sourceIp"]
    assert report_presence(large, "a-0", listen=[f"{source}:7471"]).status == 200
    path, networks = f"/v1/projects/{large.project.id}/swarm", {"peer_networks": ["203.0.113.0/24", "2001:db8::/32"]}
    assert large.cloud.http("PUT", path, json=networks, key=large.cloud.admin_key).status == 200
    assert report_presence(large, "a-0", listen=["203.0.113.7:7471", "[2001:db8::7]:7471"]).status == 200
    assert report_presence(large, "a-0", listen=["10.0.0.1:7471"]).status == 422


def test_presence_needs_the_agents_key_and_settings_an_admin(large: Fleet) -> None:
    body = {"listen": [], "site": "dc1"}
    path = "/v1/agents/a-1/presence"
    assert large.cloud.http("PUT", path, json=body, key=large.key_of("a-0")).status == 403
    path = f"/v1/projects/{large.project.id}/swarm"
    assert large.cloud.http("PUT", path, json={"swarm": "off"}, key=large.project.key).status == 403
    bad = large.cloud.http("PUT", path, json={"peer_networks": ["10.0.0.1/8"]}, key=large.cloud.admin_key)
    assert bad.status == 422


def test_figures_of_each_host_count_once_in_the_job(large: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    job_id = dispatched(large)
    assert "swarm" not in large.job(job_id) or large.job(job_id)["swarm"] is None
    for number, agent in enumerate(AGENTS):
        figures = {"origin_bytes": 1000 + number, "peer_bytes": 5000, "bad_pieces": 0, "fell_back": "none"}
        if number == 2:
            figures |= {"bad_pieces": 1, "fell_back": "ladder", "bad_peers": ["a-5"], "reused_bytes": 700}
        items = large.inbox(agent)
        for _ in range(2):
            assert large.report(agent, 0, items=items, swarm=figures).status == 200
        if number == 2:
            large.step("poll_transfer", job_id)
            assert large.job(job_id)["swarm"]["hosts"] == 3
    for _ in range(2):
        large.step("poll_transfer", job_id)
    large.step("finish_job", job_id)
    emitted = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "SwarmPeerBytes" in line]
    assert [(one["SwarmOriginBytes"], one["SwarmPeerBytes"]) for one in emitted] == [([6015.0], [30000.0])]

    job = large.job(job_id)
    assert job["status"] == "Success"
    assert job["swarm"] == {
        "origin_bytes": 6015,
        "peer_bytes": 30000,
        "bad_pieces": 1,
        "fallbacks": 1,
        "hosts": 6,
        "bad_peers": ["a-5"],
        "reused_bytes": 700,
        "fallback_reasons": {"ladder": 1},
        "egress": round(6015 / len(LARGE), 2),
    }
    assert job["file_size"] == len(LARGE)


def test_fallbacks_are_counted_by_reason(large: Fleet) -> None:
    job_id = dispatched(large)
    reasons = ["none", "alone", "alone", "deadline", "bad_pieces", "broken"]
    for agent, reason in zip(AGENTS, reasons, strict=True):
        figures = {"origin_bytes": len(LARGE) // 2, "peer_bytes": 0, "fell_back": reason}
        assert large.report(agent, 0, swarm=figures).status == 200
    large.step("poll_transfer", job_id)

    swarm = large.job(job_id)["swarm"]

    assert swarm["fallback_reasons"] == {"alone": 2, "deadline": 1, "bad_pieces": 1, "broken": 1}
    assert (swarm["fallbacks"], swarm["egress"]) == (5, 3.0)


def test_repeated_dispatch_makes_the_same_plan(large: Fleet) -> None:
    job_id = dispatched(large)
    before = swarm_of(large, "a-0")
    large.cloud.app.distribution.last_swarm = None
    job = large.cloud.app.distribution.jobs.get(large.project.id, large.job(job_id)["key"])
    assert job is not None
    transfer = large.cloud.app.distribution.transfers.list(job)[0]
    shards = large.cloud.app.distribution.targets.shards(job, range(job.shard_count or 0))
    large.cloud.app.distribution.engine.create(job, transfer, shards, len(LARGE))
    after = swarm_of(large, "a-0")
    assert before is not None
    assert after is not None
    changing = ("age", "lasts", "pieces_url", "blocks_url")
    assert {n: v for n, v in before.items() if n not in changing} == {
        n: v for n, v in after.items() if n not in changing
    }


def test_plan_for_300_hosts_takes_six_calls(large: Fleet) -> None:
    """For 10,000 hosts: tests/unit/distribution/test_swarm_calls.py."""
    app = large.cloud.app
    count = 300
    agents = [f"n-{n}" for n in range(count)]
    items = [
        {"listen": [f"10.1.{n >> 8}.{n & 255}:7471"], "site": "dc1", "zone": f"r{n % 50}", "pin": PIN, "reached": True}
        for n in range(count)
    ]
    expires_at = int(large.cloud.clock().timestamp()) + 7000
    app.table.batch_put(
        keys.presence(large.project.id, agent) | item | {"agent_id": agent, "expires_at": expires_at}
        for agent, item in zip(agents, items, strict=True)
    )
    large.to_window_start()
    job_id = str(large.submit_many(agents)["job_id"])
    large.collect()
    large.pass_window()
    large.step("close_window", job_id)
    large.step("prepare_file", job_id)
    job = app.distribution.jobs.get(large.project.id, large.job(job_id)["key"])
    assert job is not None
    with count_calls(app) as calls:
        swarm = swarm_module.swarm_of(app.distribution, job, len(LARGE))
    # Three reads of 100 presences, one each of shards, project and content.
    assert calls == {"dynamodb.BatchGetItem": 4, "dynamodb.GetItem": 2}
    terms = [swarm.terms_of(agent) for agent in agents]
    assert all(one is not None and len(one["peers"]) <= DEGREE for one in terms)


def test_two_projects_with_the_same_job_id_have_swarms_of_their_own(large: Fleet) -> None:
    """One warm function dispatches both: agent ids and Job ids may be the same in two projects."""
    other = Fleet(large.cloud)
    other.signature = other.store(LARGE)
    for agent_id in AGENTS:
        assert report_presence(other, agent_id, site="dc2", listen=[f"10.9.0.{agent_id[2:]}:7471"]).status == 200
    ours, theirs = large.submit_many(AGENTS)["job_id"], other.submit_many(AGENTS)["job_id"]
    assert ours == theirs
    large.run_until_dispatched(ours)
    for step in ("close_window", "prepare_file", "dispatch_transfer"):
        other.step(step, theirs)

    seen = [swarm_of(fleet, "a-0") for fleet in (large, other)]

    assert seen[0] is not None
    assert seen[1] is not None
    assert seen[0]["id"] != seen[1]["id"]
    assert seen[0]["accept"] != seen[1]["accept"]
    assert all(address.startswith("10.9.") for peer in seen[1]["peers"] for address in peer["at"])
