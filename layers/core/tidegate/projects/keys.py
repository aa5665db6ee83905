"""API keys: creates, lists, rotates and revokes them, and finds the key of a bearer token."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.table import Store, Write, check, noted, put, put_new, update
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import Invalid, RecordNotFound, WrongState
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act, audit_write
from tidegate.projects.model import Project
from tidegate.records import F, item_of, record_from

# The scope of a ticket, which is a key for one sign-in and nothing else.
SIGN_IN = "sign_in"
# The deployment's own admin key: its hash is a template parameter, and the table holds only its state.
BOOTSTRAP_KEY_ID = "admin"
ACTIVE, EXPIRED, REVOKED = "active", "expired", "revoked"
# How long an ended key stays in the list.
ENDED_KEY_KEPT_SECONDS = 90 * 86400
_KEY = re.compile(r"tg_([0-9a-z]{1,64})_[0-9A-Za-z]{1,128}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A caller's API key as it is stored: the hash of the key, and what the key allows."""

    key_id: Annotated[str, F("id of the key, by which it is listed, rotated and revoked")]
    project_id: str
    scopes: Annotated[
        tuple[str, ...],
        F("what the key may do: `read`, `write`, `agent`, `unmask` (lift the masks of exports), `admin`"),
    ]
    agent_id: Annotated[str | None, F("the host that a key of scope `agent` is for")]
    key_sha256: str
    # Empty for the deployment's own key.
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")]
    name: Annotated[str | None, F("what the key is for")] = None
    created_by: Annotated[str | None, F("key_id of its creator")] = None
    # Seconds since 1970. Not named `expires_at`, because the table's TTL deletes by that attribute.
    valid_until: int | None = None
    last_used_at: Annotated[str | None, F("when it was last used, to the hour")] = None
    revoked_at: str | None = None
    replaced_by: str | None = None
    # How often the agent's host had been deleted or replaced when the key was created.
    life: int = 0

    @property
    def record_id(self) -> str:
        """The id of the key's record in the table.

        The id of the bootstrap key's record includes the key's hash, so that a new bootstrap key gets a new record.
        """
        return f"{self.key_id}-{self.key_sha256}" if self.is_bootstrap else self.key_id

    @property
    def expires_at(self) -> Annotated[str | None, F("until when it is valid, ISO 8601 UTC")]:
        return None if self.valid_until is None else iso(datetime.fromtimestamp(self.valid_until, UTC))

    @property
    def is_bootstrap(self) -> bool:
        return self.key_id == BOOTSTRAP_KEY_ID

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    def state(self, now: datetime) -> str:
        if self.revoked_at:
            return REVOKED
        return EXPIRED if self.valid_until is not None and now.timestamp() >= self.valid_until else ACTIVE

    def is_active(self, now: datetime) -> bool:
        return self.state(now) == ACTIVE


def bootstrap_key(key_sha256: str) -> ApiKey:
    """Returns the deployment's admin key in its first state. It is used while the table has no record of this key."""
    return ApiKey(BOOTSTRAP_KEY_ID, "", ("admin",), None, key_sha256, "", name="bootstrap")


def is_bootstrap_record(record_id: str) -> bool:
    return record_id.startswith(f"{BOOTSTRAP_KEY_ID}-")


def hash_key(key: str) -> str:
    """The SHA-256 of a key. A slow hash is not needed: a key has 160 random bits, so nobody can guess it."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_key(given: str, key_sha256: str) -> bool:
    return bool(key_sha256) and hmac.compare_digest(hash_key(given), key_sha256)


def format_key(key_id: str, secret: str) -> str:
    return f"tg_{key_id}_{secret}"


def key_id_of(key: str) -> str | None:
    """Returns the id inside a key. None if the text does not look like a key; then no read of the table is needed."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


# --- key store
# API keys in the table: hash, state, expiry, last use.

# Page size, and the most pages of one call, for reading keys that older versions did not store under their agents.
_OLD_KEYS_A_PAGE, _OLD_KEY_PAGES = 500, 20


def key_of(item: dict[str, Any]) -> ApiKey:
    return record_from(ApiKey, item, agent_id=item.get("agent_id"))


def _listing(key: ApiKey) -> dict[str, str]:
    # A ticket is valid for a minute, so nobody has to find it in the list of keys to revoke it.
    if SIGN_IN in key.scopes:
        return {}
    return {"gsi1pk": keys.api_keys_list(key.project_id), "gsi1sk": key.key_id}


def _end(key: ApiKey, at: int) -> dict[str, Any]:
    """Returns the attributes of a key that ends at the time `at`. Then compensation closes the key's connections.

    Later the table's TTL removes the key's record. The bootstrap key's record is never removed: without it, an ended
    bootstrap key would be valid again.
    """
    due = keys.due(key.record_id, at, "key")
    return due if key.is_bootstrap else due | {"expires_at": at + ENDED_KEY_KEPT_SECONDS}


def new_key(key: ApiKey) -> list[Write]:
    """Returns the writes that store a new key.

    If the key belongs to an agent, they also list the key under that agent.
    """
    end = {} if key.valid_until is None else _end(key, key.valid_until)
    writes = [put_new(keys.api_key(key.record_id) | item_of(key) | _listing(key) | end)]
    return [*writes, put(_agent_place(key, key.agent_id))] if key.agent_id else writes


def _agent_place(key: ApiKey, agent_id: str) -> dict[str, Any]:
    """Returns the item that lists a key under its agent.

    The item is removed when the host is deleted or replaced. If the key has an expiry time, the item also expires, some
    time after the key.
    """
    expires = {} if key.valid_until is None else {"expires_at": key.valid_until + ENDED_KEY_KEPT_SECONDS}
    return keys.agent_key(key.project_id, agent_id, key.key_id) | expires


def same_life(project_id: str, agent_id: str, life: int) -> Write:
    """Returns the check that the host was not deleted or replaced since `life` was read."""
    return check(keys.agent_life(project_id, agent_id), _is_life(life), life=life)


def next_life(project_id: str, agent_id: str, life: int) -> Write:
    """Returns the write that ends the host's life `life`, so that keys of this life are refused.

    The write fails if this life has already ended.
    """
    key = keys.agent_life(project_id, agent_id)
    return update(key, {"life": life + 1}, condition=_is_life(life), life=life)


def _is_life(life: int) -> str:
    # `:life` has to be in the expression.
    return "#life = :life" if life else "attribute_not_exists(#life) OR #life = :life"


class ApiKeyStore(Store):
    def add(self, key: ApiKey, line: AuditLine) -> None:
        alive = [same_life(key.project_id, key.agent_id, key.life)] if key.agent_id else []
        self._table.transact([*new_key(key), *alive, audit_write(line), *noted(key_id=key.key_id)])

    def life(self, project_id: str, agent_id: str) -> int:
        """Returns the current life of a host: 0 at first, and one more each time the host is deleted or replaced."""
        item = self._table.get(keys.agent_life(project_id, agent_id), consistent=True)
        return int(item["life"]) if item else 0

    def end_life(self, project_id: str, agent_id: str) -> int:
        """Ends the current life of a host, so that all its keys become invalid. Returns the number of the next life."""
        ended = update(keys.agent_life(project_id, agent_id), adds={"life": 1}, condition="")
        return int(self._table.write(ended)["life"])

    def of_agent(self, project_id: str, agent_id: str) -> list[ApiKey]:
        """Returns all keys that are listed under an agent, including ended keys."""
        self._name_old_keys(project_id)
        found = self._table.query_all(keys.agent_keys(project_id, agent_id), consistent=True, project=("sk",))
        records = self._table.batch_get((keys.api_key(item["sk"]) for item in found), consistent=True)
        return [key_of(item) for item in records]

    def forget_of_agent(self, ended: Iterable[ApiKey]) -> None:
        """Removes the keys from the lists of their agents.

        The records of the keys stay, for the project's list of keys.
        """
        self._table.batch_delete(
            keys.agent_key(key.project_id, key.agent_id, key.key_id) for key in ended if key.agent_id
        )

    def _name_old_keys(self, project_id: str) -> None:
        """Adds keys that older versions created to the lists of their agents. This is done once for each project.

        One call handles at most 10,000 keys, and the next call continues. A key that is not listed yet also becomes
        invalid when its host's life ends.
        """
        marker = self._table.get(keys.agent_keys_named(project_id), consistent=True) or {}
        cursor, done = marker.get("cursor"), bool(marker.get("done"))
        for _ in range(0 if done else _OLD_KEY_PAGES):
            page = self.list(project_id, _OLD_KEYS_A_PAGE, cursor)
            self._table.batch_put(
                _agent_place(key, key.agent_id) for key in page.items if key.agent_id and not key.revoked_at
            )
            cursor, done = page.next_cursor, page.next_cursor is None
            self._table.write(put(keys.agent_keys_named(project_id) | {"cursor": cursor, "done": done}))
            if done:
                return

    def get(self, record_id: str, *, consistent: bool = False) -> ApiKey | None:
        item = self._table.get(keys.api_key(record_id), consistent=consistent)
        return key_of(item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[ApiKey]:
        page = self._table.page(
            keys.api_keys_list(project_id), index="gsi1", newest_first=True, limit=limit, cursor=cursor
        )
        return Listed([key_of(item) for item in self._table.current(page.items)], page.cursor)

    def note_use(self, key: ApiKey, now: datetime, unless_after: datetime) -> None:
        """Records that the key was used, unless a use after `unless_after` is already recorded.

        Also adds the key to the project's list of keys, in which keys of old versions are missing.
        """
        free = "(attribute_not_exists(#last_used_at) OR #last_used_at <= :before)"
        self._change(key, {"last_used_at": iso(now)}, free, before=iso(unless_after))

    def replace(self, old: ApiKey, new: ApiKey, old_until: int, line: AuditLine) -> bool:
        """Adds the new key and sets the end of the old key. False if the old key was replaced or revoked meanwhile."""
        ending = {"valid_until": old_until, "replaced_by": new.key_id} | _end(old, old_until)
        unchanged = "attribute_not_exists(#replaced_by) AND attribute_not_exists(#revoked_at)"
        ended = self._update(old, ending, unchanged)
        return self._table.try_write(*new_key(new), ended, audit_write(line), *noted(key_id=new.key_id))

    def revoke(self, key: ApiKey, now: datetime, line: AuditLine) -> bool:
        """Revokes the key. False if the key was revoked before."""
        ended = {"revoked_at": iso(now)} | _end(key, int(now.timestamp()))
        revoked = self._update(key, ended, "attribute_not_exists(#revoked_at)")
        return self._table.try_write(revoked, audit_write(line))

    def settle(self, record_id: str) -> None:
        """Marks the end of the key as finished, so that compensation no longer checks the key."""
        self._table.write(update(keys.api_key(record_id), removes=keys.DUE_ATTRIBUTES))

    def _change(self, key: ApiKey, sets: dict[str, Any], condition: str, **values: Any) -> bool:
        return self._table.try_write(self._update(key, sets, condition, **values))

    @staticmethod
    def _update(key: ApiKey, sets: dict[str, Any], condition: str, **values: Any) -> Write:
        """Returns the write that changes a key.

        The bootstrap key has no record before its first change, so the write also creates this record.
        """
        if key.is_bootstrap:
            identity = {name: getattr(key, name) for name in ("key_id", "project_id", "scopes", "key_sha256", "name")}
            sets = identity | {"scopes": list(key.scopes), "created_at": key.created_at} | sets
        else:
            condition = f"attribute_exists(#pk) AND {condition}"
        return update(keys.api_key(key.record_id), _listing(key) | sets, condition=condition, **values)


logger = Logger(service="tidegate", child=True)

TICKET_SECONDS = 60
SESSION_SECONDS = 12 * 3600
# Closes the WebSocket connections made with a key, by its record id. Returns how many may still be open.
CloseConnections = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class NewKey:
    """The id of a new key, and the text that the key's user sends. Only the hash of the text is stored."""

    key_id: str
    key: str


class ApiKeys:
    """Creates, lists, rotates and revokes API keys. When a key ends, its WebSocket connections are closed."""

    def __init__(
        self,
        store: ApiKeyStore,
        close_connections: CloseConnections,
        project_of: Callable[[str], Project],
        clock: Clock,
        admin_key_sha256: str,
    ) -> None:
        self._store = store
        self._close_all = close_connections
        self._project_of = project_of
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256

    def add(
        self,
        project_id: str,
        scopes: Sequence[str],
        agent_id: str | None = None,
        *,
        name: str | None = None,
        expires_in: int | None = None,
        by: str | None = None,
    ) -> NewKey:
        """Creates a key of a project."""
        if ("agent" in scopes) != (agent_id is not None):
            message = "agent_id is required for a key with the scope agent, and not allowed for any other key"
            raise Invalid(message, errors=[{"loc": ["body", "agent_id"], "msg": message}])
        self._project_of(project_id)
        life = self._store.life(project_id, agent_id) if agent_id else 0
        made = self.make_key(project_id, tuple(dict.fromkeys(scopes)), agent_id, name, expires_in, by, life=life)
        return self._add(*made)

    def add_admin(self, *, name: str | None = None, expires_in: int | None = None, by: str | None = None) -> NewKey:
        """Creates a key for all projects."""
        return self._add(*self.make_key("", ("admin",), None, name, expires_in, by))

    def _add(self, made: ApiKey, text: str) -> NewKey:
        why = f"scopes {' '.join(made.scopes)}" + (f" for {made.agent_id}" if made.agent_id else "")
        self._store.add(made, self._line(made, made.created_by, "key.create", why))
        return NewKey(made.key_id, text)

    def make_key(
        self,
        project_id: str,
        scopes: tuple[str, ...],
        agent_id: str | None,
        name: str | None,
        expires_in: int | None,
        by: str | None,
        *,
        life: int = 0,
    ) -> tuple[ApiKey, str]:
        """Returns a new key and the key's text. Does not store the key."""
        now = self._clock()
        key_id = new_id("key", now).replace("-", "")
        text = format_key(key_id, secrets.token_hex(20))
        until = None if expires_in is None else int(now.timestamp()) + expires_in
        key = ApiKey(key_id, project_id, scopes, agent_id, hash_key(text), iso(now), name, by, until, life=life)
        return key, text

    def sign_in_ticket(self, by: str) -> tuple[ApiKey, str]:
        """Creates a ticket and returns it with its text.

        The ticket is a key that allows one `sign_in` within a minute, and nothing else.
        """
        ticket, text = self.make_key("", (SIGN_IN,), None, "sign-in", TICKET_SECONDS, by)
        self._add(ticket, text)
        return ticket, text

    def sign_in(self, ticket_id: str) -> tuple[ApiKey, str]:
        """Replaces a ticket by an admin key for the console, which is valid for 12 hours. Returns the key and its text.

        Raises WrongState if the ticket was used before or has expired.
        """
        ticket, now = self._key(ticket_id), self._clock()
        if SIGN_IN not in ticket.scopes or not ticket.is_active(now):
            raise WrongState("only a ticket that was made within the last minute signs in: make another one")
        made, text = self.make_key("", ("admin",), None, "console", SESSION_SECONDS, ticket.created_by)
        line = self._line(made, ticket.created_by, "key.sign_in", f"with the ticket {ticket_id}")
        if not self._store.replace(ticket, made, int(now.timestamp()), line):
            raise WrongState("the ticket was used before: make another one")
        return made, text

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[ApiKey]:
        self._project_of(project_id)
        return self._store.list(project_id, limit, cursor)

    def list_admin(self, limit: int, cursor: str | None) -> Listed[ApiKey]:
        return self._store.list("", limit, cursor)

    def rotate(self, key_id: str, overlap_s: int, by: str) -> NewKey:
        """Creates a key with the name, scopes and lifetime of an old key.

        The old key stays valid for `overlap_s` seconds.
        """
        old, now = self._key(key_id), self._clock()
        if not old.is_active(now):
            raise WrongState(f"the key {key_id} is {old.state(now)}: create a new key")
        if old.replaced_by:
            raise WrongState(f"the key {key_id} was rotated to {old.replaced_by} before: rotate that key")
        lifetime = None
        if old.valid_until is not None:
            lifetime = old.valid_until - int(datetime.fromisoformat(old.created_at).timestamp())
        name = None if old.is_bootstrap else old.name
        new, text = self.make_key(old.project_id, old.scopes, old.agent_id, name, lifetime, by, life=old.life)
        end = int(now.timestamp()) + overlap_s
        until = end if old.valid_until is None else min(end, old.valid_until)
        line = self._line(old, by, "key.rotate", f"to {new.key_id}, overlap {overlap_s} s")
        if not self._store.replace(old, new, until, line):
            raise WrongState(
                f"another request rotated or revoked the key {key_id} meanwhile: list the keys to see their states"
            )
        if overlap_s == 0:
            self._close_connections(old.record_id)
        return NewKey(new.key_id, text)

    def revoke(self, key_id: str, by: str) -> None:
        """Revokes a key and closes its WebSocket connections.

        Idempotent: a repeat closes connections that are still open.
        """
        key = self._key(key_id)
        if key.is_admin and key_id == by:
            raise WrongState("an admin key cannot revoke itself: call with the admin key that you want to keep")
        self._store.revoke(key, self._clock(), self._line(key, by, "key.revoke"))
        self._close_connections(key.record_id)

    # --- all keys of an agent

    def life(self, project_id: str, agent_id: str) -> int:
        """Returns the host's current life: a number that rises when the host is deleted or replaced.

        Keys of an earlier life are refused.
        """
        return self._store.life(project_id, agent_id)

    def agent_has_key(self, project_id: str, agent_id: str) -> bool:
        """Whether a key of this agent is valid."""
        life, now = self._store.life(project_id, agent_id), self._clock()
        return any(key.life == life and key.is_active(now) for key in self._store.of_agent(project_id, agent_id))

    def end_agent(self, project_id: str, agent_id: str, by: str) -> int:
        """Revokes all keys of an agent, and returns the number of the host's next life.

        The call can be repeated after a crash. Its first write already makes all the keys invalid.
        """
        life = self._store.end_life(project_id, agent_id)
        self.revoke_older(project_id, agent_id, life, by)
        return life

    def revoke_older(self, project_id: str, agent_id: str, life: int, by: str) -> None:
        """Revokes the agent's keys of lives before `life`, and closes the WebSocket connections of these keys.

        A key that a rotation created in such a life is revoked, too. Keys of `life` itself stay valid: the call may run
        late, when a new host has already replaced the old one.
        """
        older = [key for key in self._store.of_agent(project_id, agent_id) if key.life < life]
        for key in older:
            self.revoke(key.key_id, by)
        self._store.forget_of_agent(older)

    def _line(self, key: ApiKey, by: str | None, action: str, why: str = "") -> AuditLine:
        return act(key.project_id or NO_PROJECT, key.key_id, self._clock(), by or SYSTEM, action, why)

    def finish_end(self, key: ApiKey) -> bool:
        """Closes the connections of a key that has expired or was revoked. False if the key is still active."""
        if key.is_active(self._clock()):
            return False
        self._close_connections(key.record_id)
        return True

    def record_id(self, key_id: str) -> str:
        """The id of the key's record in the table."""
        return bootstrap_key(self._admin_key_sha256).record_id if key_id == BOOTSTRAP_KEY_ID else key_id

    def _key(self, key_id: str) -> ApiKey:
        key = self._store.get(self.record_id(key_id), consistent=True)
        if key is None and key_id == BOOTSTRAP_KEY_ID:
            return bootstrap_key(self._admin_key_sha256)
        if key is None or key.key_id != key_id:
            raise RecordNotFound(f"no key has the id {key_id}")
        return key

    def _close_connections(self, record_id: str) -> None:
        """Closes the key's connections. If some of them stay open, compensation tries again later."""
        still_open = self._close_all(record_id)
        if still_open:
            logger.warning("connections of an ended key are still open", key_id=record_id, open=still_open)
        else:
            self._store.settle(record_id)


LAST_USE_EVERY = timedelta(hours=1)
# Less often, because ten thousand idle hosts reconnect every two hours, and `GET /v1/agents` has their `last_seen`.
AGENT_USE_EVERY = timedelta(days=1)
_MOST_REMEMBERED = 10_000
# Valid keys that a process keeps for `kept_seconds`, so that a busy client does not cost a table read for each request.
MOST_KEPT = 1000


class Authentication:
    """Finds the valid key of a bearer token.

    A valid key is kept in this process for `kept_seconds`, so a revocation may take effect that much later. API
    Gateway's own cache cannot be used: it requires that every request has the header. API Gateway would answer a
    request without the header itself, and not as problem+json.
    """

    def __init__(self, store: ApiKeyStore, clock: Clock, admin_key_sha256: str, kept_seconds: int) -> None:
        self._store = store
        self._clock = clock
        self._admin_key_sha256 = admin_key_sha256
        self._kept_seconds = kept_seconds
        self._kept: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()
        # When this process last tried to record a key's use, so that a failing table is not called at every request.
        self._noted: dict[str, datetime] = {}

    def key_of_token(self, token: str) -> ApiKey | None:
        """Returns the key of a bearer token. None if the key is unknown, expired or revoked.

        Only a valid key is kept for later calls.
        """
        # By hash, so that a memory dump shows no key in this dict.
        name, now = hash_key(token), self._clock().timestamp()
        until, known = self._kept.get(name, (0.0, None))
        if known is not None and now < until and known.is_active(self._clock()):
            return known
        self._kept.pop(name, None)
        known = self.read_key(token)
        if known is not None and self._kept_seconds:
            self._kept[name] = (now + self._kept_seconds, known)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return known

    def read_key(self, token: str) -> ApiKey | None:
        """Returns the valid key of a token, read from the table and not from the cache.

        None if the key is unknown, expired or revoked.
        """
        key = self._find(token)
        now = self._clock()
        if key is None or not key.is_active(now):
            return None
        self._note_use(key, now)
        return key

    def _find(self, token: str) -> ApiKey | None:
        if is_key(token, self._admin_key_sha256):
            bootstrap = bootstrap_key(self._admin_key_sha256)
            return self._store.get(bootstrap.record_id) or bootstrap
        key_id = key_id_of(token)
        if not key_id:
            return None
        # Consistent, because the key may have been created a second ago.
        stored = self._store.get(key_id, consistent=True)
        return stored if stored and is_key(token, stored.key_sha256) else None

    def _note_use(self, key: ApiKey, now: datetime) -> None:
        """Records that the key was used, for the list of keys. Never raises.

        Records at most one use in an hour, or one in a day if the key belongs to an agent.
        """
        before = now - (AGENT_USE_EVERY if key.agent_id else LAST_USE_EVERY)
        if self._noted.get(key.record_id, before) > before:
            return
        if key.last_used_at and key.last_used_at > iso(before):
            return
        if len(self._noted) >= _MOST_REMEMBERED:
            self._noted.clear()
        self._noted[key.record_id] = now
        try:
            self._store.note_use(key, now, before)
        except Exception:
            logger.warning("the last use of a key was not recorded", key_id=key.key_id, exc_info=True)

    def is_active(self, record_id: str) -> bool:
        """Whether the key of an open connection is still valid.

        The read is consistent: a revocation takes effect at once.
        """
        key = self._store.get(record_id, consistent=True)
        return key.is_active(self._clock()) if key else is_bootstrap_record(record_id)
