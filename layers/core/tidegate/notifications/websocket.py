"""WebSocket clients: tickets, connections, what they watch, and the messages pushed to them."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

import urllib3
from aws_lambda_powertools import Logger
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Store, delete, noted, put_new, update
from tidegate.common.ids import Clock, digest, iso
from tidegate.common.json_input import read_json
from tidegate.common.sequences import slices
from tidegate.errors import Busy, DomainError, Invalid, RateLimited, RecordNotFound, ScopeMissing
from tidegate.notifications.notices import followed_id, is_over, kind_of

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

# --- websocket messages
# Messages of WebSocket clients, and messages to them.

TICKET_SECONDS = 60
# API Gateway closes a connection after two hours; ten minutes more for its records.
CONNECTION_SECONDS = 2 * 3600 + 600
MOST_IDS = 100
# Records that one connection may watch.
MOST_WATCHES = 1000
LONGEST_ID = 2048
# API Gateway allows frames of 32 KB, and closes the connection (1009) if one is larger.
LARGEST_FRAME = 32 * 1024
ACTIONS = ("watch", "unwatch", "ping")


@dataclass(frozen=True, slots=True)
class Holder:
    """The project and key to which a ticket or connection belongs.

    A ticket or connection has no more rights than its key.
    """

    project_id: str
    key_record_id: str
    # Set for an agent's connection, which gets a message when there is something in the agent's inbox.
    agent_id: str | None = None
    may_watch: bool = True
    # The life of the agent's host when its key was created.
    life: int = 0


@dataclass(frozen=True, slots=True)
class WatchEntry:
    """A record that a client watches. `followed_id`: the record whose notices report on it."""

    project_id: str
    followed_id: str
    record_id: str
    connection_id: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """A text with which a browser opens a WebSocket. The browser cannot send a key when it connects."""

    ticket: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class ClientMessage:
    action: str
    record_ids: tuple[str, ...]


def parse(text: str) -> ClientMessage:
    """Returns the message in a client's text. Raises Invalid if the text is not a valid message."""
    try:
        given = read_json(text)
    except ValueError as error:
        raise Invalid('a message must be JSON, such as {"action": "watch", "task_ids": ["…"]}') from error
    if not isinstance(given, dict) or given.get("action") not in ACTIONS:
        raise Invalid(f"action must be one of {', '.join(ACTIONS)}")
    ids = given.get("task_ids", [])
    if not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise Invalid(f"task_ids must be a list of ids, each a text of 1 to {LONGEST_ID} characters")
    if given["action"] != "ping" and not 0 < len(ids) <= MOST_IDS:
        raise Invalid(f"task_ids must have 1 to {MOST_IDS} ids, not {len(ids)}")
    return ClientMessage(given["action"], tuple(dict.fromkeys(ids)))


def _is_id(value: object) -> bool:
    """Whether the value may be an id.

    A text with half a surrogate pair is refused, because an answer that contains it could not be encoded.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        return False
    return not any(0xD800 <= ord(char) <= 0xDFFF for char in value)


def message(kind: str, data: Mapping[str, Any]) -> str:
    """Returns the message as JSON.

    If the message is too large for a frame, its largest fields are left out and `truncated` is added.
    """
    text = _json({"type": kind, "data": data})
    if _size(text) <= LARGEST_FRAME:
        return text
    kept: dict[str, Any] = {"truncated": True}
    room = LARGEST_FRAME - _size(_json({"type": kind, "data": kept}))
    for name, value in sorted(data.items(), key=lambda field: _size(_json(dict([field])))):
        room -= _size(_json({name: value}))
        if room < 0:
            break
        kept[name] = value
    return _json({"type": kind, "data": kept})


def id_messages(kind: str, record_ids: Sequence[str]) -> list[str]:
    """Returns messages that contain these ids, and only as many messages as the frame size requires."""
    lists: list[list[str]] = [[]]
    size = start = _size(_json({"type": kind, "data": {"task_ids": []}}))
    for record_id in record_ids:
        more = _size(_json(record_id)) + 1
        if lists[-1] and size + more > LARGEST_FRAME:
            lists.append([])
            size = start
        lists[-1].append(record_id)
        size += more
    return [_json({"type": kind, "data": {"task_ids": ids}}) for ids in lists]


def error_message(error: DomainError, **about: str | int) -> str:
    return message("error", {"code": error.code, "detail": error.detail, **about})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(text: str) -> int:
    return len(text.encode())


class ConnectionStore(Store):
    def add_ticket(self, ticket: str, holder: Holder, expires_at: int) -> None:
        self._table.try_write(put_new(keys.ticket(ticket) | asdict(holder) | {"expires_at": expires_at}), *noted())

    def redeem(self, ticket: str, connection_id: str, now: float) -> Holder | None:
        """Uses a ticket for a connection and returns the ticket's holder.

        None if the ticket is unknown, expired, or used by another connection. The same connection may redeem the ticket
        again. The expiry time is checked here, because the table's TTL deletes tickets late.
        """
        free = "(attribute_not_exists(#used_by) OR #used_by = :connection)"
        condition = f"attribute_exists(#pk) AND #expires_at > :now AND {free}"
        used = update(
            keys.ticket(ticket), {"used_by": connection_id}, condition=condition, now=now, connection=connection_id
        )
        try:
            return _holder(self._table.write(used))
        except ConditionFailed:
            return None

    def add(self, connection_id: str, holder: Holder, expires_at: int) -> None:
        """Stores the connection under its id, and again under its key.

        A revocation of the key then finds the connection.
        """
        held = asdict(holder) | {"expires_at": expires_at}
        # Listed with the connection's watches, so that it is removed with them. An agent's connection has no watches.
        listing = {"gsi1pk": keys.watches_of_connection(connection_id), "gsi1sk": "KEY"} if holder.may_watch else {}
        under_key = keys.key_connection(holder.key_record_id, connection_id) | {"expires_at": expires_at}
        self._table.batch_put([keys.connection(connection_id) | held, under_key | listing])

    def holder_of(self, connection_id: str) -> Holder | None:
        """Returns the connection's project and key; None if the connection is unknown.

        The read is consistent, because the first message may come right after the connection.
        """
        item = self._table.get(keys.connection(connection_id), consistent=True)
        return _holder(item) if item else None

    def recount_watches(self, connection_id: str, added: int, most: int) -> bool:
        """Corrects the connection's count of watches, then does the same as `count_watches`.

        The stored count may be too high, because it still includes watches that have ended.
        """
        listed = self._table.query_all(keys.watches_of_connection(connection_id), index="gsi1", project=("sk",))
        watches = sum(1 for _ in islice(listed, most + 1)) - 1
        self._table.try_write(update(keys.connection(connection_id), {"watches": max(0, watches)}))
        return self.count_watches(connection_id, added, most)

    def count_watches(self, connection_id: str, added: int, most: int) -> bool:
        """Adds to the connection's count of watches. False, without a change, if the count would exceed `most`."""
        few = "attribute_exists(#pk) AND (attribute_not_exists(#watches) OR #watches <= :few)"
        key = keys.connection(connection_id)
        return self._table.try_write(update(key, adds={"watches": added}, condition=few, few=most - added))

    def of_key(self, record_id: str) -> list[str]:
        """The ids of all open connections that were made with a key."""
        found = self._table.query_all(keys.key_connections(record_id), consistent=True, project=("sk",))
        return [item["sk"] for item in found]

    def remove(self, connection_id: str) -> None:
        of_it = self._table.query_all(keys.watches_of_connection(connection_id), index="gsi1", project=("pk", "sk"))
        watches = [{"pk": item["pk"], "sk": item["sk"]} for item in of_it]
        self._table.batch_delete([keys.connection(connection_id), *watches])


def _holder(item: Item) -> Holder | None:
    """Returns the project and key in an item. None if the item is from an old version and has no key.

    In that case, the client has to get another ticket.
    """
    key_record_id = item.get("key_record_id")
    if not key_record_id:
        return None
    agent_id, may_watch = item.get("agent_id"), item.get("may_watch", True)
    return Holder(str(item["project_id"]), str(key_record_id), agent_id, bool(may_watch), int(item.get("life", 0)))


class WatchStore(Store):
    """Watches in the table. Each watched record also has a marker item.

    The progress of a record without a marker is not sent, and costs only one read.
    """

    def add(self, watches: Sequence[WatchEntry], expires_at: int) -> None:
        """Stores watches. The markers of the records are written first, so that no watch is without a marker."""
        followed = dict.fromkeys((watch.project_id, watch.followed_id) for watch in watches)
        self._table.batch_put(keys.watched(*ids) | {"expires_at": expires_at} for ids in followed)
        self._table.batch_put(_item(watch) | {"expires_at": expires_at} for watch in watches)

    def of_record(self, project_id: str, followed_id: str) -> list[WatchEntry]:
        found = self._table.query_all(
            keys.watched(project_id, followed_id)["pk"],
            sk_prefix=keys.WATCH_PREFIX,
            consistent=True,
            project=("record_id", "connection_id"),
        )
        return [WatchEntry(project_id, followed_id, item["record_id"], item["connection_id"]) for item in found]

    def remove(self, watches: Iterable[WatchEntry]) -> None:
        self._table.batch_delete(_key(watch) for watch in watches)

    def unmark(self, project_id: str, followed_id: str) -> None:
        """Removes a record's marker.

        A client that starts to watch at the same moment misses progress, but not the record's end.
        """
        self._table.write(delete(keys.watched(project_id, followed_id)))


def _item(watch: WatchEntry) -> dict[str, str]:
    # A digest: an id may be longer than a sort key of an index.
    listing = {"gsi1pk": keys.watches_of_connection(watch.connection_id), "gsi1sk": digest(watch.record_id)}
    return _key(watch) | listing | {"record_id": watch.record_id, "connection_id": watch.connection_id}


def _key(watch: WatchEntry) -> dict[str, str]:
    return keys.watch(watch.project_id, watch.followed_id, watch.record_id, watch.connection_id)


logger = Logger(service="tidegate", child=True)


_THREADS = 16
_SETTLED = (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.GONE)
_RETRIES = urllib3.Retry(total=2, status_forcelist=(429, 500, 502, 503), allowed_methods=None, backoff_factor=0.2)


class Sent(NamedTuple):
    """The connections that did not get their message. Those in `gone` are closed.

    Those in `failed` may still be open.
    """

    gone: set[str]
    failed: set[str]


class WebSocketSender:
    """Sends messages to connected WebSocket clients, and closes connections.

    Requests are signed without a boto3 client. That is much cheaper, and a Job may have hundreds of watchers.
    """

    def __init__(self, endpoint: str, region: str, credentials: Callable[[], ReadOnlyCredentials]) -> None:
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials
        self._pool = urllib3.PoolManager(
            maxsize=_THREADS, timeout=urllib3.Timeout(connect=3, read=5), retries=_RETRIES, block=True
        )

    def send(self, messages: Iterable[tuple[str, str]]) -> Sent:
        """Sends the texts of (connection id, text) pairs in parallel."""
        pending = list(messages)
        statuses = self._call_all("POST", pending)
        results = [(to, status) for (to, _), status in zip(pending, statuses, strict=True)]
        return Sent(
            gone={to for to, status in results if status == HTTPStatus.GONE},
            failed={to for to, status in results if status not in _SETTLED},
        )

    def close(self, connection_ids: Collection[str]) -> set[str]:
        """Closes connections. Returns the ids of connections that may still be open."""
        statuses = self._call_all("DELETE", [(connection_id, "") for connection_id in connection_ids])
        return {to for to, status in zip(connection_ids, statuses, strict=True) if status not in _SETTLED}

    def _call_all(self, method: str, calls: Sequence[tuple[str, str]]) -> list[int | None]:
        if not calls:
            return []
        auth = SigV4Auth(self._credentials(), "execute-api", self._region)
        if len(calls) == 1:
            return [self._call(method, auth, *calls[0])]
        with ThreadPoolExecutor(min(_THREADS, len(calls))) as threads:
            return list(threads.map(lambda pair: self._call(method, auth, *pair), calls))

    def _call(self, method: str, auth: SigV4Auth, connection_id: str, text: str) -> int | None:
        url = f"{self._endpoint}/%40connections/{quote(connection_id, safe='')}"
        request = AWSRequest(method, url, data=text.encode())
        auth.add_auth(request)
        try:
            answer = self._pool.request(method, url, body=request.data, headers=dict(request.headers.items()))
        except urllib3.exceptions.HTTPError as error:
            # The other messages must still be sent.
            logger.warning("a WebSocket connection was not reached", connection_id=connection_id, error=str(error))
            return None
        if answer.status not in _SETTLED:
            logger.warning("API Gateway refused a message", connection_id=connection_id, status=answer.status)
        return answer.status


def close_connections_of_key(connections: ConnectionStore, sender: WebSocketSender, key_record_id: str) -> int:
    """Closes every connection that was made with a key. Returns how many connections may still be open."""
    found = connections.of_key(key_record_id)
    still_open = sender.close(found) if found else set()
    for connection_id in found:
        if connection_id not in still_open:
            connections.remove(connection_id)
    return len(still_open)


Lookup = Callable[[str, str], dict[str, Any] | None]
BatchLookup = Callable[[str, Sequence[str]], dict[str, dict[str, Any]]]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TASK_PREFIX = "AsyncDownloadTask"
# Agents send exactly this text.
BEAT = '{"action":"beat"}'
# A new connection costs as much as this many messages.
CONNECT_COSTS = 5
# What reading all watches of a connection costs, to count those that have not ended.
RECOUNT_COSTS = 100
# A connection that sends so many messages over its limit is closed, because API Gateway bills refused messages, too.
MOST_REFUSED = 20
_CONNECTIONS_KEPT = 10_000
# (project id, key id, agent id, what the message costs); RateLimited if it is too much.
Limit = Callable[[str, str, str | None, int], None]


# If more clients watch Tasks of one Job, they get only the ends and no progress, because each Task costs reads.
_FOLLOWERS_SENT_PROGRESS = 50
_FOLLOWERS_TOGETHER = 100
_CLIENTS_TOGETHER = 500
# (watch, message to send, whether the watch is done after it)
_Update = tuple[WatchEntry, str | None, bool]


class RecordLookup:
    """Finds any record by its id, whichever capability the record belongs to."""

    def __init__(self, lookups: Mapping[str, Lookup], batched: Mapping[str, BatchLookup]) -> None:
        self._lookups = lookups
        self._batched = batched

    def find(self, project_id: str, record_id: str) -> dict[str, Any] | None:
        prefix = self._prefix(record_id)
        try:
            return self._lookups[prefix](project_id, record_id) if prefix is not None else None
        except RecordNotFound:
            return None

    def find_many(self, project_id: str, record_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the records that exist, by id. Reads several records at once if their capability supports this."""
        found: dict[str, dict[str, Any]] = {}
        together: dict[str, list[str]] = defaultdict(list)
        for record_id in dict.fromkeys(record_ids):
            prefix = self._prefix(record_id)
            if prefix is not None and prefix in self._batched:
                together[prefix].append(record_id)
            elif (record := self.find(project_id, record_id)) is not None:
                found[record_id] = record
        for prefix, ids in together.items():
            found |= self._batched[prefix](project_id, ids)
        return found

    def _prefix(self, record_id: str) -> str | None:
        name = f"{_TASK_PREFIX}:" if _UUID.fullmatch(record_id) else record_id
        return next((prefix for prefix in self._lookups if name.startswith(prefix)), None)


class AgentPresence(Protocol):
    """The fleet implements this protocol to learn which hosts are connected.

    This capability may not import the fleet.
    """

    def connected(
        self, project_id: str, agent_id: str, connection_id: str, about: Mapping[str, str], life: int
    ) -> None:
        """Stores that the host is connected. Raises a DomainError if the host may not connect."""

    def disconnected(self, project_id: str, agent_id: str, connection_id: str) -> None: ...


class WebSocketClients:
    """WebSocket clients: they connect with a ticket, watch and unwatch records, and disconnect."""

    def __init__(
        self,
        connections: ConnectionStore,
        watches: WatchStore,
        records: RecordLookup,
        outgoing: WebSocketSender,
        key_is_active: Callable[[str], bool],
        presence: Callable[[], AgentPresence],
        limit: Limit,
        clock: Clock,
    ) -> None:
        self._limit = limit
        # How many messages of a connection this function has refused in a row.
        self._refused: dict[str, int] = {}
        self._presence = presence
        self._connections = connections
        self._watches = watches
        self._records = records
        self._outgoing = outgoing
        self._key_is_active = key_is_active
        self._clock = clock

    def issue_ticket(self, holder: Holder) -> Ticket:
        """Creates a ticket for one connection. That connection is closed when the holder's key ends, or earlier."""
        made, until = secrets.token_urlsafe(32), self._clock() + timedelta(seconds=TICKET_SECONDS)
        self._connections.add_ticket(made, holder, int(until.timestamp()))
        return Ticket(made, iso(until))

    def connect(self, connection_id: str, ticket: str, about: Mapping[str, str]) -> bool:
        """Stores a new connection. False if the ticket, its key or its host is refused.

        Raises RateLimited if the host, the project or the key sends too much. `about`: the query of the request, with
        an agent's inventory.
        """
        now = self._clock().timestamp()
        holder = self._connections.redeem(ticket, connection_id, now) if ticket else None
        if holder is None:
            return False
        self._limit(holder.project_id, holder.key_record_id, holder.agent_id, CONNECT_COSTS)
        # Stored before the key is checked: a concurrent revocation either finds the connection or is seen here.
        self._connections.add(connection_id, holder, self._expiry())
        if not self._key_is_active(holder.key_record_id):
            self._connections.remove(connection_id)
            return False
        if holder.agent_id:
            try:
                self._presence().connected(holder.project_id, holder.agent_id, connection_id, about, holder.life)
            except DomainError as error:
                logger.info("an agent may not connect", agent_id=holder.agent_id, code=error.code)
                self._connections.remove(connection_id)
                return False
        return True

    def disconnect(self, connection_id: str) -> None:
        holder = self._connections.holder_of(connection_id)
        if holder and holder.agent_id:
            # Only one write: the connection's other records expire by themselves.
            self._presence().disconnected(holder.project_id, holder.agent_id, connection_id)
            return
        self._connections.remove(connection_id)

    def receive(self, connection_id: str, text: str) -> None:
        """Handles a client's message. Answers and errors are sent over the connection."""
        if text == BEAT:
            # API Gateway answers beats itself; this is for a deployment that does not have that route yet.
            return
        holder = self._connections.holder_of(connection_id)
        if holder is None:
            answers = [error_message(RecordNotFound("this connection is unknown: connect again with a new ticket"))]
        elif not self._key_is_active(holder.key_record_id):
            self._close(connection_id)
            return
        else:
            try:
                received = self._admitted(holder, connection_id, text)
                if received.action != "ping" and not holder.may_watch:
                    raise ScopeMissing(
                        "this connection may not watch records: get its ticket with a key that has the scope read"
                    )
                answers = self._answers(holder, connection_id, received)
            except RateLimited as error:
                if self._refused.get(connection_id, 0) > MOST_REFUSED:
                    self._close(connection_id)
                    return
                answers = [error_message(error, retry_after=math.ceil(error.retry_after or 1))]
            except DomainError as error:
                answers = [error_message(error)]
        for answer in answers:
            if self._outgoing.send([(connection_id, answer)]).gone:
                self._connections.remove(connection_id)
                return

    def _admitted(self, holder: Holder, connection_id: str, text: str) -> ClientMessage:
        """Returns the parsed message. Raises RateLimited if the client sends too many messages.

        Raises Invalid if the message is malformed. A malformed message counts like any other.
        """
        try:
            received: ClientMessage | DomainError = parse(text)
        except DomainError as error:
            received = error
        count = 1 + (len(received.record_ids) if isinstance(received, ClientMessage) else 0)
        try:
            self._limit(holder.project_id, holder.key_record_id, holder.agent_id, count)
        except RateLimited:
            if len(self._refused) >= _CONNECTIONS_KEPT:
                self._refused.clear()
            self._refused[connection_id] = self._refused.get(connection_id, 0) + 1
            raise
        self._refused.pop(connection_id, None)
        if isinstance(received, DomainError):
            raise received
        return received

    def _close(self, connection_id: str) -> None:
        self._refused.pop(connection_id, None)
        self._outgoing.close([connection_id])
        self._connections.remove(connection_id)

    def _answers(self, holder: Holder, connection_id: str, received: ClientMessage) -> list[str]:
        project_id, count = holder.project_id, len(received.record_ids)
        if received.action == "ping":
            return [message("pong", {"at": iso(self._clock())})]
        if received.action == "unwatch":
            self._unwatch(project_id, connection_id, received.record_ids)
            return id_messages("unwatched", received.record_ids)
        if not self._connections.count_watches(connection_id, count, MOST_WATCHES):
            self._limit(project_id, holder.key_record_id, holder.agent_id, RECOUNT_COSTS)
            if not self._connections.recount_watches(connection_id, count, MOST_WATCHES):
                raise Invalid(
                    f"a connection watches at most {MOST_WATCHES} records: unwatch some, or open another connection"
                )
        found = self._watch(project_id, connection_id, received.record_ids)
        watching = [record_id for record_id, answer in found.items() if answer is None]
        acknowledged = id_messages("watching", watching) if watching else []
        return acknowledged + [answer for answer in found.values() if answer is not None]

    def _watch(self, project_id: str, connection_id: str, record_ids: Sequence[str]) -> dict[str, str | None]:
        """Returns for each id None if the record is watched now, or else the message to send at once.

        Such a message is sent if the record has ended or is unknown. A few calls read and write any number of records.
        """
        answers: dict[str, str | None] = {}
        followed: dict[str, str] = {}
        pending = record_ids
        while pending:
            records, new = self._records.find_many(project_id, pending), list[WatchEntry]()
            for record_id in pending:
                record = records.get(record_id)
                if record is None:
                    unknown = RecordNotFound(f"this project has no record {record_id[:200]}")
                    answers[record_id] = error_message(unknown, task_id=record_id)
                elif is_over(record.get("status")):
                    answers[record_id] = message(kind_of(record_id, record), record)
                elif (to_follow := followed_id(record_id, record)) == followed.get(record_id):
                    answers[record_id] = None
                else:
                    followed[record_id] = to_follow
                    new.append(WatchEntry(project_id, to_follow, record_id, connection_id))
            if new:
                self._watches.add(new, self._expiry())
            # Read again: the record may have ended, or the Task moved to another Job, before the watch was stored.
            pending = [watch.record_id for watch in new]
        return {record_id: answers[record_id] for record_id in record_ids}

    def _unwatch(self, project_id: str, connection_id: str, record_ids: Sequence[str]) -> None:
        records = self._records.find_many(project_id, record_ids)
        followed = {each: followed_id(each, records[each]) if each in records else each for each in record_ids}
        self._watches.remove([WatchEntry(project_id, to, each, connection_id) for each, to in followed.items()])

    def _expiry(self) -> int:
        return int(self._clock().timestamp()) + CONNECTION_SECONDS

    # --- push

    def push(self, notice: Mapping[str, Any]) -> int:
        """Sends a notice of the topic to all clients that watch the notice's record.

        Returns how many messages were sent. Raises Busy if a client did not get the message that a record has ended.
        The client's watch is kept, so that Lambda's retry sends the message again.
        """
        project_id, record_id = notice["project_id"], notice["record_id"]
        over = is_over(notice["status"])
        watches = self._watches.of_record(project_id, record_id)
        if not watches:
            if not over:
                self._watches.unmark(project_id, record_id)
            return 0
        own = [watch for watch in watches if watch.record_id == record_id]
        followers = [watch for watch in watches if watch.record_id != record_id]
        text = message(notice["type"], notice["data"])
        sent = removed = failed = 0
        # Each portion is finished before the next is read, so that a repeated run continues after it.
        for portion in self._portions(project_id, own, followers, text, over):
            delivered, done = self._send(portion)
            sent += delivered
            removed += done
            failed += sum(is_done for _, _, is_done in portion) - done
        if removed == len(watches):
            self._watches.unmark(project_id, record_id)
        if failed:
            raise Busy(
                f"{failed} of {len(watches)} clients did not get the end of {record_id}: Lambda runs the push again"
            )
        return sent

    def _portions(
        self, project_id: str, own: Sequence[WatchEntry], followers: Sequence[WatchEntry], text: str, over: bool
    ) -> Iterator[list[_Update]]:
        for portion in slices(own, _CLIENTS_TOGETHER):
            yield [(watch, text, over) for watch in portion]
        if over or len(followers) <= _FOLLOWERS_SENT_PROGRESS:
            for portion in slices(followers, _FOLLOWERS_TOGETHER):
                records = self._records.find_many(project_id, [watch.record_id for watch in portion])
                yield [(watch, *self._state(watch, records.get(watch.record_id))) for watch in portion]

    def _send(self, updates: list[_Update]) -> tuple[int, int]:
        """Sends these messages. Returns (number of messages sent, number of watches removed because they are done)."""
        messages = [(watch.connection_id, text) for watch, text, _ in updates if text]
        gone, failed = self._outgoing.send(messages)
        for connection_id in gone:
            self._connections.remove(connection_id)
        done = [watch for watch, _, is_done in updates if is_done and watch.connection_id not in failed]
        if done:
            self._watches.remove(done)
        return sum(connection_id not in gone | failed for connection_id, _ in messages), len(done)

    def _state(self, watch: WatchEntry, record: dict[str, Any] | None) -> tuple[str | None, bool]:
        """Returns the message about the watched record, and whether the watch is done after this message.

        If there is no such record, the message is None and the watch is done.
        """
        if record is None:
            return None, True
        shown = message(kind_of(watch.record_id, record), record)
        if is_over(record.get("status")):
            return shown, True
        followed = followed_id(watch.record_id, record)
        if followed == watch.followed_id:
            return shown, False
        # The Task was moved to the next window's Job: the watch moves with it.
        moved = WatchEntry(watch.project_id, followed, watch.record_id, watch.connection_id)
        self._watches.add([moved], self._expiry())
        return shown, True
