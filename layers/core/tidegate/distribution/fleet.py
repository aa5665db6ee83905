"""The fleet: hosts with their groups and labels, enrolment, and how connected agents are woken."""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.clients import Message
from tidegate.aws.table import (
    Item,
    Store,
    Write,
    can_be_stored,
    check,
    decode_cursor,
    delete,
    encode_cursor,
    noted,
    put,
    put_new,
    unknown_cursor,
    update,
)
from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.common.sequences import Listed, slices
from tidegate.distribution import Distribution
from tidegate.distribution.aws_identity import Signed, ask_sts
from tidegate.distribution.model import (
    MOST_STARTS,
    OFFLINE,
    AgentProcess,
    Claim,
    Enrolment,
    FetchedJob,
    FleetAgent,
    Inventory,
    Target,
    job_key,
    shard_of,
)
from tidegate.distribution.store import outcome
from tidegate.errors import (
    AgentDuplicate,
    AgentExists,
    AgentRemoved,
    Busy,
    Conflict,
    DomainError,
    IdentityRefused,
    Invalid,
    RecordNotFound,
    TokenRefused,
)
from tidegate.projects.audit import AuditLine, act, audit_write
from tidegate.projects.keys import ApiKey, ApiKeys, new_key, next_life, same_life
from tidegate.projects.model import Project
from tidegate.records import item_of, record_from, view_of

if TYPE_CHECKING:
    from tidegate.http.client import SafeHttp
    from tidegate.projects.projects import Projects

_MEMBERSHIP = ("project_id", "agent_id", "groups", "labels")
_STATE = ("connection_id", "connected_at", "last_seen", "life", "allows")
# Attributes of a host's process, which the next process does not take over.
_OF_INSTANCE = ("connection_id", "connected_at", "former_instance")
_NOT_NEWER = "attribute_not_exists(#life) OR #life <= :life"
_LAST = "\U0010ffff"
_PAGE = 500


def _item(agent: FleetAgent) -> Item:
    return keys.agent(agent.project_id, agent.agent_id) | item_of(agent)


def new_agent(agent: FleetAgent) -> Write:
    """The write that stores a new agent. It fails if an agent with this id exists."""
    return put_new(_item(agent))


def renewed_agent(agent: FleetAgent, known: FleetAgent) -> Write:
    """The write for an agent that enrols again.

    It fails if the stored agent has called the API, or if its key is not that of `known`."""
    return put(_item(agent), "#key_id = :replaced AND attribute_not_exists(#last_seen)", replaced=known.key_id)


def replaced_agent(agent: FleetAgent) -> Write:
    """The write that gives the id to another host. The same transaction ends the life of the former host."""
    return put(_item(agent))


class KnownHost(NamedTuple):
    """The current life and the record of a host, with which an agent's call is compared."""

    life: int
    agent: FleetAgent | None


class FleetStore(Store):
    """Agents in the table: one item each, spread over several partitions."""

    def known_host(self, project_id: str, agent_id: str) -> KnownHost:
        """The host's life and record, from a consistent read, so that a deletion takes effect at once."""
        wanted = (keys.agent_life(project_id, agent_id), keys.agent(project_id, agent_id))
        found = {item["pk"]: item for item in self._table.batch_get(wanted, consistent=True)}
        life, agent = (found.get(key["pk"]) for key in wanted)
        return KnownHost(int(life["life"]) if life else 0, record_from(FleetAgent, agent) if agent else None)

    def change_instance(
        self,
        project_id: str,
        agent_id: str,
        known: FleetAgent | None,
        sets: Mapping[str, Any],
        now: datetime,
        life: int,
        removes: Sequence[str] = (),
    ) -> bool:
        """Stores which process the host runs, or that a process was refused. False if another call changed it first.

        Removes the connection of the former process. If an agent did not enrol, this creates its record."""
        was = known.instance if known else None
        sets = {"project_id": project_id, "agent_id": agent_id, "life": life} | dict(sets)
        if "instance" in sets:
            sets |= {"instance_at": iso(now), "last_seen": iso(now)}
            removes = (*removes, *(name for name in _OF_INSTANCE if sets.get(name) is None))
        same = "#instance = :was" if was else "attribute_not_exists(#instance)"
        condition = f"{same} AND ({_NOT_NEWER})"
        values: dict[str, Any] = {"was": was} if was else {}
        key = keys.agent(project_id, agent_id)
        change = update(key, sets, removes=removes, condition=condition, life=life, **values)
        return self._table.try_write(change, same_life(project_id, agent_id, life))

    def connected(
        self,
        project_id: str,
        agent_id: str,
        connection_id: str,
        inventory: Inventory,
        now: datetime,
        life: int | None = None,
    ) -> None:
        """Stores the agent's connection in place of an older one. Messages go to the newest connection."""
        sets = {"connection_id": connection_id, "connected_at": iso(now), **asdict(inventory)}
        self._note_seen(project_id, agent_id, sets, now, life)

    def disconnected(self, project_id: str, agent_id: str, connection_id: str, now: datetime) -> None:
        """Removes the agent's connection, unless the agent has a newer one or was deleted."""
        key = keys.agent(project_id, agent_id)
        same, removed = "#connection_id = :ended", ("connection_id", "connected_at")
        ended = update(key, {"last_seen": iso(now)}, removes=removed, condition=same, ended=connection_id)
        self._table.try_write(ended)

    def note_seen(
        self, project_id: str, agent_id: str, now: datetime, last_job: FetchedJob | None = None, life: int | None = None
    ) -> None:
        self._note_seen(project_id, agent_id, {"last_job": asdict(last_job)} if last_job else {}, now, life)

    def _note_seen(
        self, project_id: str, agent_id: str, sets: Mapping[str, Any], now: datetime, life: int | None
    ) -> None:
        """Stores when the agent last called. If an agent did not enrol, this creates its record.

        If the host's `life` has ended, nothing is stored, and no record is created. `life` is None for calls with an
        admin's key."""
        key, named = keys.agent(project_id, agent_id), {"project_id": project_id, "agent_id": agent_id}
        sets = named | {"last_seen": iso(now)} | dict(sets)
        if life is None:
            self._table.write(update(key, sets, condition=""))
        elif not self._table.try_write(update(key, sets, condition="#life = :life", life=life)):
            # No record, or one from before lives were stored. The transaction costs more, and is rare.
            changed = update(key, sets | {"life": life}, condition=_NOT_NEWER, life=life)
            self._table.try_write(changed, same_life(project_id, agent_id, life))

    def get(self, project_id: str, agent_id: str) -> FleetAgent | None:
        item = self._table.get(keys.agent(project_id, agent_id), consistent=True)
        return record_from(FleetAgent, item) if item else None

    def get_many(self, project_id: str, agent_ids: Iterable[str]) -> dict[str, FleetAgent]:
        wanted = [keys.agent(project_id, agent_id) for agent_id in dict.fromkeys(agent_ids)]
        return {item["agent_id"]: record_from(FleetAgent, item) for item in self._table.batch_get(wanted)}

    def change(
        self,
        project_id: str,
        agent_id: str,
        groups: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        line: AuditLine,
    ) -> bool:
        """Changes groups and labels. False if there is no such agent."""
        sets = {"groups": None if groups is None else list(groups), "labels": None if labels is None else dict(labels)}
        return self._table.try_write(update(keys.agent(project_id, agent_id), sets), audit_write(line))

    def remove(self, project_id: str, agent_id: str, life: int, line: AuditLine) -> bool:
        """Removes the agent and its addresses for peers.

        `life`: the host's new life, which begins with the deletion. False if a host of this or a later life already has
        the id."""
        older = "attribute_not_exists(#life) OR #life < :life"
        return self._table.try_write(
            delete(keys.agent(project_id, agent_id), older, life=life),
            delete(keys.presence(project_id, agent_id)),
            audit_write(line),
        )

    def memberships(self, project_id: str, *, states: bool = False) -> Iterator[FleetAgent]:
        """All agents with their groups and labels only. `states` adds the fields that tell whether an agent is online.

        Reading 100,000 whole records would exceed the API's time-out."""
        wanted = _MEMBERSHIP + (_STATE if states else ())
        for spread in range(keys.AGENT_SPREAD):
            for item in self._table.query_all(keys.agents(project_id, spread), project=wanted):
                yield record_from(FleetAgent, item)

    def list(self, project_id: str, cursor: str | None) -> Listed[FleetAgent]:
        """A page of up to 500 agents, partition by partition, sorted by id within a partition."""
        spread, after = _position(cursor)
        partition = keys.agents(project_id, spread)
        # Consistent: otherwise the list may show a host as offline after its own page showed it online.
        found = self._table.query(partition, sk_between=(after, _LAST), limit=_PAGE, consistent=True)
        agents = [record_from(FleetAgent, item) for item in found.items if item["sk"] != after]
        if found.cursor:
            return Listed(agents, _cursor(spread, found.items[-1]["sk"]))
        return Listed(agents, _cursor(spread + 1, " ") if spread + 1 < keys.AGENT_SPREAD else None)

    @staticmethod
    def cursor_after(agent: FleetAgent) -> str:
        pk = keys.agent(agent.project_id, agent.agent_id)["pk"]
        return _cursor(int(pk.rsplit("#", 1)[1]), agent.agent_id)


def _cursor(spread: int, after: str) -> str:
    return encode_cursor({"after": {"S": f"{spread}#{after}"}})


def _position(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, " "
    text = decode_cursor(cursor).get("after", {}).get("S", "")
    spread, hash_sign, after = str(text).partition("#")
    known = hash_sign and re.fullmatch("[0-9]{1,4}", spread) and int(spread) < keys.AGENT_SPREAD
    # A bound above the other one is an error for DynamoDB.
    if not known or not " " <= after < _LAST or not can_be_stored("", after):
        raise unknown_cursor()
    return int(spread), after


_KEPT_SECONDS = 7 * 86400
# Longer than a signature is accepted, before and after its time.
_SPENT_SECONDS = 3600


class EnrolmentStore(Store):
    """Enrolments in the table: the hash of the token, and the number of its uses."""

    def add(self, enrolment: Enrolment, line: AuditLine) -> None:
        item = keys.enrolment(enrolment.enrolment_id) | item_of(enrolment)
        expires_at = {"expires_at": enrolment.valid_until + _KEPT_SECONDS}
        note = noted(enrolment_id=enrolment.enrolment_id)
        self._table.transact([put_new(item | expires_at), audit_write(line), *note])

    def get(self, enrolment_id: str) -> Enrolment | None:
        item = self._table.get(keys.enrolment(enrolment_id), consistent=True)
        return record_from(Enrolment, item) if item else None

    def spend(self, signature: str, now: datetime) -> bool:
        """Stores that this signature was used. Returns False if it was used before."""
        item = keys.spent_signature(signature) | {"expires_at": int(now.timestamp()) + _SPENT_SECONDS}
        # boto3 repeats a write whose answer was lost: the repeated write must succeed, too.
        call = secrets.token_hex(8)
        own = put(item | {"call": call}, "attribute_not_exists(#pk) OR #call = :call", call=call)
        return self._table.try_write(own)

    def use(self, use: Write, key: ApiKey, agent: FleetAgent, line: AuditLine) -> bool:
        """Stores one use, the key and the agent, all or none. False if no use is left, or if the agent exists."""
        alive = same_life(agent.project_id, agent.agent_id, agent.life)
        return self._table.try_write(use, *new_key(key), new_agent(agent), alive, audit_write(line))

    def replace(self, known: FleetAgent, key: ApiKey, agent: FleetAgent, *lines: AuditLine) -> bool:
        """Stores a new key for an agent that never connected, because the answer with its first key was lost.

        This counts as the same use of the enrolment. False if the agent has connected or was replaced meanwhile."""
        return self._table.try_write(*new_key(key), renewed_agent(agent, known), _ends(agent), *map(audit_write, lines))

    def take_over(self, use: Write, key: ApiKey, agent: FleetAgent, *lines: AuditLine) -> bool:
        """Stores one use, the key and the agent, and ends the life of the host that had the id.

        False if no use is left, or if the id was deleted or replaced meanwhile."""
        writes = [use, *new_key(key), replaced_agent(agent), _ends(agent)]
        return self._table.try_write(*writes, *map(audit_write, lines))


def _use(enrolment: Enrolment) -> Write:
    return update(keys.enrolment(enrolment.enrolment_id), adds={"used": 1}, condition="#used < #uses")


def _still_allowed(project: Project) -> Write:
    """The write that checks that no admin has changed the project since its AWS roles were read."""
    same = "attribute_exists(#pk) AND (attribute_not_exists(#revision) OR #revision = :was)"
    return check(keys.project(project.project_id), same, was=project.revision)


def _ends(agent: FleetAgent) -> Write:
    """The write that ends the life of the host that had the agent's id before."""
    return next_life(agent.project_id, agent.agent_id, agent.life - 1)


logger = Logger(service="tidegate", child=True)

# A filtered list returns what it found after this many reads of 500, with a cursor to continue from.
_READS = 20
# Seconds between two writes of `last_seen` for a host that polls. A connected host needs none.
_NOTED_EVERY = 240.0
_REMEMBERED = 5000
_LONGEST_TEXT = 128
# How often a claim is read again after another call has changed the record.
_TRIES = 3
_REFUSAL_NOTED_EVERY = timedelta(minutes=1)
_INSTANCE = re.compile(r"([0-9A-Za-z_-]{8,64})(?: ([0-9A-Za-z_-]{8,64}))?")
_ALLOWS = re.compile(r"[A-Za-z0-9_.:,-]{1,1000}")
MOST_SELECTED = 100_000


class Fleet:
    """The fleet: all hosts, their groups and labels, and their connections."""

    def __init__(self, d: Distribution) -> None:
        self._d = d
        # When `last_seen` was written for a host, and its newest transfer then.
        self._noted: OrderedDict[tuple[str, str, int | None], tuple[float, str | None]] = OrderedDict()

    # --- calls of hosts

    def admit(self, project_id: str, agent_id: str, process: AgentProcess) -> FleetAgent | None:
        """Checks that the process may act as the host. Returns the host's record as it was before, if there was one.

        AgentRemoved if the host was deleted or replaced, AgentDuplicate if another live host uses its id, Busy if
        another process of the host has just started."""
        for _ in range(_TRIES):
            life, agent = self._d.fleet_store.known_host(project_id, agent_id)
            if process.life not in (None, life):
                raise AgentRemoved(
                    f"the host {agent_id} was deleted or replaced after this key was created: enrol it again, under "
                    "another id if a new host has this one"
                )
            # An admin's key is not bound to a process.
            anyone = process.instance is None and process.life is None
            if anyone or self._claim(project_id, agent_id, process, life, agent):
                return agent
        raise Busy(f"several processes call as the agent {agent_id}")

    def _claim(
        self, project_id: str, agent_id: str, process: AgentProcess, life: int, agent: FleetAgent | None
    ) -> bool:
        """Makes this the process of the host, unless it is that already. False if another call was faster.

        AgentDuplicate or Busy if the process may not act as the host."""
        now = self._d.clock()
        if agent is None and process.instance is None:
            return True
        claim = agent.claim_of(process, now) if agent else Claim.TAKES_OVER
        if claim is Claim.KNOWN:
            return True
        if claim is Claim.NAMELESS:
            _report_duplicate(project_id, agent_id)
            raise AgentDuplicate(
                f"the agent {agent_id} is online and names its process with each call, but this call does not: send "
                "its X-Tidegate-Instance, or enrol this host under an id of its own"
            )
        if claim is Claim.TOO_EARLY:
            raise Busy(f"another process of the agent {agent_id} has just started: try again in a minute")
        if agent and claim is Claim.REFUSED:
            self._refuse(agent, process, now, life)
        starts, since = agent.starts_at(now) if agent else (0, iso(now))
        if starts >= MOST_STARTS:
            raise Busy(f"the agent {agent_id} has started {starts} times since {since}: try again ten minutes later")
        sets: dict[str, Any] = {"instance": process.instance, "starts": starts + 1, "starts_since": since}
        if agent and claim is Claim.COMES_BACK:
            sets |= {"rival": agent.instance, "rival_at": iso(now)}
        elif agent:
            sets |= {"former_instance": agent.instance}
        # Once the first host is offline, there are no longer two.
        ended = ("rival", "rival_at") if agent and agent.state(now) == OFFLINE else ()
        if process.instance is None:
            # An older version of the agent, which names no process.
            del sets["instance"], sets["former_instance"]
            ended = (*ended, "instance", "instance_at", *_OF_INSTANCE)
        if not self._d.fleet_store.change_instance(project_id, agent_id, agent, sets, now, life, removes=ended):
            return False
        if claim is Claim.COMES_BACK:
            _report_duplicate(project_id, agent_id)
        if agent and agent.connection_id:
            # If the other process runs, it connects again, and is noticed within a minute.
            self._d.outgoing.close([agent.connection_id])
        return True

    def _refuse(self, agent: FleetAgent, process: AgentProcess, now: datetime, life: int) -> NoReturn:
        """Raises AgentDuplicate. Stores the refusal at most once a minute."""
        due = agent.rival_at is None or now - datetime.fromisoformat(agent.rival_at) >= _REFUSAL_NOTED_EVERY
        if due:
            sets = {"rival": process.instance, "rival_at": iso(now)}
            self._d.fleet_store.change_instance(agent.project_id, agent.agent_id, agent, sets, now, life)
            _report_duplicate(agent.project_id, agent.agent_id)
        raise AgentDuplicate(
            f"another host uses the agent id {agent.agent_id} and is online; was this host cloned from its image? Stop "
            "one of them, or enrol this host under an id of its own"
        )

    def connected(
        self, project_id: str, agent_id: str, connection_id: str, about: Mapping[str, str], life: int
    ) -> None:
        """Stores a new connection. Raises as `admit` does."""
        self.admit(project_id, agent_id, agent_process(life, about.get("instance")))
        self._d.fleet_store.connected(project_id, agent_id, connection_id, inventory_of(about), self._d.clock(), life)

    def disconnected(self, project_id: str, agent_id: str, connection_id: str) -> None:
        self._d.fleet_store.disconnected(project_id, agent_id, connection_id, self._d.clock())

    def polled(
        self, project_id: str, agent_id: str, last_job: FetchedJob | None = None, life: int | None = None
    ) -> None:
        """Stores `last_seen` and the host's newest Job in one write.

        Writes nothing if the last write is only minutes ago and the Job is the same."""
        now, host = self._d.clock().timestamp(), (project_id, agent_id, life)
        noted_at, noted_transfer = self._noted.get(host, (0.0, None))
        is_new_job = last_job is not None and last_job.transfer_id != noted_transfer
        if now - noted_at < _NOTED_EVERY and not is_new_job:
            return
        self._d.fleet_store.note_seen(project_id, agent_id, self._d.clock(), last_job, life)
        self._noted[host] = now, last_job.transfer_id if last_job else noted_transfer
        if len(self._noted) > _REMEMBERED:
            self._noted.popitem(last=False)

    # --- calls of operators

    def get(self, project_id: str, agent_id: str) -> dict[str, Any]:
        """The agent's record, with its unfinished transfers as `current`."""
        agent = self.require(project_id, agent_id)
        current = [
            {
                "transfer_id": one.transfer_id,
                "job_id": one.job_id,
                "file_name": one.file_name,
                "container_id": one.target.container_id,
                "progress": one.state.progress,
            }
            for one in self._d.inbox.inbox(project_id, agent_id)
            if one.until > self._d.clock().timestamp()
        ]
        return self._views(project_id, [agent])[0] | {"current": current}

    def list(
        self, project_id: str, group: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        now, wanted = self._d.clock(), frozenset({group} if group else ())
        found: list[FleetAgent] = []
        for _ in range(_READS):
            page = self._d.fleet_store.list(project_id, cursor)
            found += [a for a in page.items if a.has(wanted, {}) and state in (None, a.state(now))]
            cursor = page.next_cursor
            if len(found) > limit:
                cursor = self._d.fleet_store.cursor_after(found[limit - 1])
                break
            if cursor is None:
                break
        return Listed([*self._views(project_id, found[:limit])], cursor)

    def _views(self, project_id: str, agents: Sequence[FleetAgent]) -> Sequence[dict[str, Any]]:
        now, last_jobs = self._d.clock(), _last_jobs(self._d, project_id, agents)
        return [agent.view(now) | {"last_job": last_jobs.get(agent.agent_id)} for agent in agents]

    def change(
        self, project_id: str, agent_id: str, groups: Sequence[str] | None, labels: Mapping[str, str] | None, who: str
    ) -> dict[str, Any]:
        if groups is None and labels is None:
            raise Invalid("neither groups nor labels were given: send at least one of them")
        parts = [f"groups {', '.join(groups) or 'none'}"] if groups is not None else []
        if labels is not None:
            parts.append("labels " + (", ".join(f"{name}={value}" for name, value in labels.items()) or "none"))
        line = act(project_id, agent_id, self._d.clock(), who, "agent.change", "; ".join(parts))
        if not self._d.fleet_store.change(project_id, agent_id, groups, labels, line):
            raise _unknown(agent_id)
        return self._views(project_id, [self.require(project_id, agent_id)])[0]

    def remove(self, project_id: str, agent_id: str, who: str) -> None:
        """Deletes the agent, revokes all its keys and closes their connections.

        The record is deleted last. So if the function dies before that, the agent can be deleted again."""
        api_keys = self._d.api_keys()
        if self._d.fleet_store.get(project_id, agent_id) is None and not api_keys.agent_has_key(project_id, agent_id):
            raise _unknown(agent_id)
        life = api_keys.end_agent(project_id, agent_id, who)
        line = act(project_id, agent_id, self._d.clock(), who, "agent.delete")
        self._d.fleet_store.remove(project_id, agent_id, life, line)

    def selected(self, project_id: str, groups: Iterable[str], labels: Mapping[str, str]) -> Sequence[str]:
        """The ids of the hosts that are in any of the groups and have all labels. Invalid if there is no such host."""
        wanted = frozenset(groups)
        found = [agent.agent_id for agent in self._d.fleet_store.memberships(project_id) if agent.has(wanted, labels)]
        selection = ", ".join([*sorted(wanted), *(f"{name}={value}" for name, value in labels.items())])
        if not found:
            raise Invalid(f"no host matches {selection}: GET /v1/agents shows the groups and labels of each")
        if len(found) > MOST_SELECTED:
            raise Invalid(
                f"{len(found)} agents have {selection}, but a Job takes {MOST_SELECTED} at most: select fewer"
            )
        return found

    def require(self, project_id: str, agent_id: str) -> FleetAgent:
        agent = self._d.fleet_store.get(project_id, agent_id)
        if agent is None:
            raise _unknown(agent_id)
        return agent


# The outcome of the last Job of each host is read from the Job's records, so that it costs no writes.


def _last_jobs(d: Distribution, project_id: str, agents: Iterable[FleetAgent]) -> dict[str, dict[str, Any]]:
    """The last Job of each agent, by agent id. Its `status` is None if the Job's records have expired.

    Takes at most three batch reads. Reads Jobs before their targets, because an unfinished target ends with its Job."""
    known = {agent.agent_id: agent.last_job for agent in agents if agent.last_job}
    if not known:
        return {}
    places = {name: (last.transfer_id, Target(name, last.container_id)) for name, last in known.items()}
    wanted = list({job_key(last.job_id) for last in known.values()})
    jobs = d.jobs.get_many(project_id, wanted, consistent=True)
    entries = d.inbox.read(project_id, places.values())
    # A host may report after its Job has ended: its inbox entry then has a result that the Job did not count.
    cut_off = [
        (job, shard_of(target, job.shard_count))
        for name, (_, target) in places.items()
        if (job := jobs.get(job_key(known[name].job_id))) and job.rest_code is not None and job.shard_count
    ]
    shards = d.targets.shards_of_jobs(cut_off) if cut_off else {}
    found: dict[str, dict[str, Any]] = {}
    for name, last in known.items():
        key = job_key(last.job_id)
        job, entry = jobs.get(key), entries.get(places[name])
        state = entry.state if entry else None
        if job and job.rest_code is not None and job.shard_count:
            target = places[name][1]
            shard = shards.get((key, shard_of(target, job.shard_count)))
            state = shard.states.get(target) if shard else None
        status = outcome(job, state)["status"] if job and state is not None else None
        found[name] = view_of(last) | {"key": key, "status": status}
    return found


def _unknown(agent_id: str) -> RecordNotFound:
    return RecordNotFound(f"this project has no agent {agent_id}: it has neither connected nor enrolled")


def agent_process(life: int | None, instance: str | None) -> AgentProcess:
    """The calling process. `instance` has the id of the process, and that of the former process if there was one.

    A malformed `instance` is ignored."""
    found = _INSTANCE.fullmatch(instance or "")
    return AgentProcess(life, found[1], found[2]) if found else AgentProcess(life)


def _report_duplicate(project_id: str, agent_id: str) -> None:
    """Logs that two hosts use one id, with a metric in the log (EMF), which needs no AWS call."""
    from aws_lambda_powertools import Metrics
    from aws_lambda_powertools.metrics import MetricUnit

    logger.warning("two hosts use one agent id", project_id=project_id, agent_id=agent_id)
    metrics = Metrics(service="distribution")
    metrics.add_metric("AgentDuplicates", MetricUnit.Count, 1)
    metrics.flush_metrics()


def inventory_of(about: Mapping[str, str]) -> Inventory:
    """The inventory from a connection's query string. Malformed values are left out."""
    free = about.get("free_bytes", "")
    is_count = free.isascii() and free.isdecimal() and len(free) < 19
    allows = about.get("allows", "")
    return Inventory(
        _text(about.get("version")),
        _text(about.get("zone")),
        int(free) if is_count else None,
        allows if _ALLOWS.fullmatch(allows) else None,
    )


def _text(value: str | None) -> str | None:
    if value is None or not 0 < len(value) <= _LONGEST_TEXT or not value.isprintable():
        return None
    return value


_TOKEN = re.compile(r"tge_([0-9a-z]{10,40})_([0-9a-f]{40})")


class Enrolments:
    """Gives each host its own API key, so that nobody has to copy a key to the host.

    The host proves itself with a token or with its AWS role."""

    def __init__(
        self,
        store: EnrolmentStore,
        fleet: FleetStore,
        api_keys: Callable[[], ApiKeys],
        projects: Projects,
        clock: Clock,
        http: SafeHttp,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._api_keys = api_keys
        self._projects = projects
        self._clock = clock
        self._http = http

    def add(
        self,
        project_id: str,
        groups: Sequence[str],
        labels: Mapping[str, str],
        uses: int,
        expires_in: int,
        who: str,
        *,
        replace: bool = False,
    ) -> dict[str, Any]:
        self._projects.get(project_id)
        now = self._clock()
        enrolment_id = new_id("enr", now).replace("-", "")
        token = f"tge_{enrolment_id}_{secrets.token_hex(20)}"
        until = now + timedelta(seconds=expires_in)
        made = Enrolment(
            enrolment_id,
            project_id,
            digest(token),
            tuple(groups),
            dict(labels),
            uses,
            int(until.timestamp()),
            replace=replace,
        )
        why = f"{uses} hosts until {iso(until)}" + (f", groups {', '.join(groups)}" if groups else "")
        why += ", replaces hosts" if replace else ""
        self._store.add(made, act(project_id, enrolment_id, now, who, "enrolment.create", why))
        return {"enrolment_id": enrolment_id, "token": token, "expires_at": iso(_whole(made.valid_until))}

    def enrol(self, token: str, agent_id: str, inventory: Inventory, claim: str | None = None) -> dict[str, Any]:
        """Returns a key that is bound to this agent. All records are written in one transaction.

        `claim` is a secret of the host. With this secret, the host can enrol again while it has not used its key."""
        found = self._checked(token)
        return self._enrolled(found, _use(found), agent_id, inventory, claim)

    def enrol_by_aws(
        self, signed: Signed, agent_id: str | None, inventory: Inventory, claim: str | None = None
    ) -> dict[str, Any]:
        """As `enrol`, for a host that proves its AWS role. The host's id is the name of the role's session.

        Anyone may call this. So STS is asked only for a project that allows roles, and once for each signature. A
        request that was copied and sent again gets no key, and does not call STS."""
        try:
            project = self._projects.get(signed.project_id, consistent=True)
        except RecordNotFound:
            project = None
        # The same text for both, so that a stranger does not learn which projects exist.
        if project is None or not project.aws_roles:
            raise IdentityRefused(
                f"no AWS role may enrol hosts in the project {signed.project_id}: an admin allows one with "
                "PATCH /v1/projects/{project_id} (aws_roles)"
            )
        if not self._store.spend(signed.signature, self._clock()):
            raise IdentityRefused("this signature was used already: sign another request")
        account, name, session = ask_sts(self._http, signed)
        role = project.aws_role(account, name)
        if role is None:
            raise IdentityRefused(f"the role {name} of the AWS account {account} may not enrol hosts in this project")
        if agent_id not in (None, session):
            raise IdentityRefused(f"a host with this AWS identity has the id {session}, not {agent_id}")
        found = Enrolment(
            f"aws:{account}/{name}", project.project_id, "", role.groups, role.labels, 0, 0, replace=role.replace
        )
        return self._enrolled(found, _still_allowed(project), session, inventory, claim)

    def _enrolled(
        self, found: Enrolment, use: Write, agent_id: str, inventory: Inventory, claim: str | None
    ) -> dict[str, Any]:
        api_keys = self._api_keys()
        known = self._fleet.get(found.project_id, agent_id)
        again = known is not None and self._is_lost_answer(known, found, claim)
        in_use = known is not None or api_keys.agent_has_key(found.project_id, agent_id)
        if in_use and not again and not found.replace:
            raise _exists(agent_id)
        life = api_keys.life(found.project_id, agent_id) + (1 if in_use else 0)
        key, text = api_keys.make_key(
            found.project_id, ("agent",), agent_id, f"enrolled {agent_id}"[:100], None, found.enrolment_id, life=life
        )
        agent = FleetAgent(
            found.project_id,
            agent_id,
            found.groups,
            found.labels,
            inventory,
            key_id=key.key_id,
            enrolment_id=found.enrolment_id,
            claim_sha256=digest(claim) if claim else None,
            life=life,
        )
        line = self._line(found, agent_id, "agent.enrol", f"key {key.key_id}")
        if known is not None and again:
            lost = self._line(found, agent_id, "agent.delete", "it enrols again: the first answer was lost")
            if not self._store.replace(known, key, agent, lost, line):
                raise _exists(agent_id)
        elif in_use:
            replaced = self._line(found, agent_id, "agent.delete", "a host enrols that may replace the one with its id")
            if not self._store.take_over(use, key, agent, replaced, line):
                self._require_use(found)
                raise Conflict(f"another request changed the agent {agent_id} meanwhile: try again")
        elif not self._store.use(use, key, agent, line):
            if self._fleet.get(found.project_id, agent_id) is None:
                self._require_use(found)
            raise _exists(agent_id)
        if in_use:
            # Older keys are refused since the transaction. After a crash before this line the host enrols again.
            api_keys.revoke_older(found.project_id, agent_id, life, found.enrolment_id)
        return {"project_id": found.project_id, "agent_id": agent_id, "key_id": key.key_id, "key": text}

    def _line(self, enrolment: Enrolment, agent_id: str, action: str, why: str) -> AuditLine:
        """A line of the audit trail. Its actor is the enrolment, because the host has no key yet."""
        return act(enrolment.project_id, agent_id, self._clock(), enrolment.enrolment_id, action, why)

    def _require_use(self, enrolment: Enrolment) -> None:
        if not enrolment.uses:
            raise Conflict("another request changed the project or the host meanwhile: sign and try again")
        now = self._store.get(enrolment.enrolment_id)
        if now is None or now.used >= now.uses:
            raise TokenRefused(
                f"the token was used {enrolment.uses} times, as often as it allows: ask an admin for another one"
            )

    @staticmethod
    def _is_lost_answer(known: FleetAgent, found: Enrolment, claim: str | None) -> bool:
        """Whether the same host enrolled here before but never used its key. The answer with the key was then lost.

        Several hosts may have the token, but only the host that enrolled knows its `claim`."""
        same = claim and known.claim_sha256 and hmac.compare_digest(known.claim_sha256, digest(claim))
        return bool(same) and known.enrolment_id == found.enrolment_id and known.last_seen is None

    def _checked(self, token: str) -> Enrolment:
        parts = _TOKEN.fullmatch(token)
        found = self._store.get(parts[1]) if parts else None
        if found is None or not hmac.compare_digest(found.token_sha256, digest(token)):
            raise TokenRefused("no enrolment has this token: ask an admin for one (POST /v1/enrolments)")
        if found.valid_until <= self._clock().timestamp():
            raise TokenRefused(f"the token expired at {iso(_whole(found.valid_until))}: ask an admin for another one")
        return found


def _exists(agent_id: str) -> AgentExists:
    return AgentExists(
        f"the agent {agent_id} exists already, or has a key: delete it first, enrol under another id, or use a token "
        "or a role that may replace hosts"
    )


def _whole(epoch: int) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


# --- wakeups
# Wakes connected agents when their inbox has entries. Polls repeat this for hosts that do not start.

_AGENTS_A_MESSAGE = 100
# The rate at which all hosts of a Job together request URLs and report: about thirty concurrent functions.
HOSTS_A_SECOND = 500
FLEET_BURST = 2000
LONGEST_SPREAD = 120
# A host that has not started by then may have missed its wake-up, which is sent again at doubling intervals.
FIRST_REPEAT = 15.0


def spread_seconds(targets: int, fleet_rate: int) -> int:
    """The seconds over which the hosts of a Job with that many targets spread their requests and reports.

    API Gateway lets FLEET_BURST requests through at once, then `fleet_rate` per second."""
    return min(LONGEST_SPREAD, max(targets // HOSTS_A_SECOND, (targets - FLEET_BURST) // fleet_rate))


def is_time_to_repeat(age: float, since_last_poll: float, spread: int, first: float = FIRST_REPEAT) -> bool:
    """Whether a repeated wake-up fell due since the last poll.

    Hosts were woken `age` seconds ago, and had `spread` seconds to start. Repeats are due after that time: by default
    15, 30, 60 … seconds later, where `first` is the first of these numbers."""
    now, before = age - spread, age - spread - since_last_poll
    moment = first
    while moment <= now:
        if moment > before:
            return True
        moment *= 2
    return False


def wakeup(within_s: int, **also: Any) -> str:
    """The JSON message that wakes an agent. `within_s`: the seconds over which hosts spread their requests."""
    message = {"type": "transfers"} | ({"within_s": within_s} if within_s else {}) | also
    return json.dumps(message, separators=(",", ":"))


def wake_soon(
    d: Distribution, project_id: str, agent_ids: Iterable[str], within_s: int, *, directly: bool = False, **also: Any
) -> None:
    """Wakes these agents. Never raises, because the agents poll even if a wake-up is lost.

    `directly` wakes the first hundred from here. Through the queue and a cold function, that would take half a second
    longer. `also` is added to the message:

    `ended`: the id of a transfer that hosts must not put in place any more. `releases`: hosts ask for the goals of
    their releases. `repeat`: hosts that were told before need only one poll.
    """
    distinct = list(dict.fromkeys(agent_ids))
    first = distinct[:_AGENTS_A_MESSAGE] if directly else []
    _enqueue_wakeups(d, project_id, distinct[len(first) :], {"within_s": within_s} | also)
    if not first:
        return
    try:
        wake_now(d, project_id, first, within_s, **also)
    except (ClientError, BotoCoreError, DomainError, OSError):
        logger.exception("agents were not woken directly: the queue is used", project_id=project_id)
        _enqueue_wakeups(d, project_id, first, {"within_s": within_s} | also)


def _enqueue_wakeups(d: Distribution, project_id: str, agent_ids: list[str], told: Mapping[str, Any]) -> None:
    messages = [
        Message({"project_id": project_id, "agents": list(some)} | dict(told))
        for some in slices(agent_ids, _AGENTS_A_MESSAGE)
    ]
    if not messages:
        return
    try:
        d.wakeups_queue.send(*messages)
    except (ClientError, BotoCoreError, DomainError):
        logger.exception("agents were not woken", project_id=project_id, hosts=len(agent_ids))


def wake_now(d: Distribution, project_id: str, agent_ids: Iterable[str], within_s: int, **also: Any) -> int:
    """Sends a wake-up to those of the agents that are connected. Returns how many of them got it."""
    found = d.fleet_store.get_many(project_id, agent_ids).values()
    connected = {agent.connection_id: agent for agent in found if agent.connection_id}
    text, now = wakeup(within_s, **also), d.clock()
    gone = d.outgoing.send([(connection_id, text) for connection_id in connected]).gone
    for connection_id in gone:
        # A host that is just connecting is woken again by a poll of its Job.
        if not connected[connection_id].may_be_opening(now):
            d.fleet_store.disconnected(project_id, connected[connection_id].agent_id, connection_id, now)
    return len(connected) - len(gone)
