"""The DynamoDB table, with plain Python values. Stores provide the keys (`keys.py`) and the conditions."""

from __future__ import annotations

import base64
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.common.ids import Clock
from tidegate.common.json_input import read_json
from tidegate.errors import Busy, Conflict, DomainError, IdempotencyInProgress, Invalid

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def code_of(error: ClientError) -> str:
    """Returns the error code of AWS, such as `NoSuchUpload`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """Returns the HTTP status of the error; 0 if the error has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


# --- serialization
# Converts Python values to and from DynamoDB's format; encodes and decodes list cursors.

Item = dict[str, Any]
Key = Mapping[str, str]

# DynamoDB's numbers lie between 1E-130 and 1E+126; floats go down to 5E-324 and up to 1.8E+308.
_SMALLEST, _LARGEST = 1e-100, 1e125
_DIGITS = 38
_TOO_LARGE = 10**_DIGITS
_LONGEST_HASH_KEY, _LONGEST_RANGE_KEY = 2048, 1024
# The only number in a key is a time in seconds.
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def to_wire_value(value: Any) -> dict[str, Any]:
    """Returns the value in DynamoDB's form, such as {"S": "text"}. Invalid if DynamoDB could not store it."""
    if isinstance(value, str):
        return {"S": _utf8(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float | Decimal):
        return {"N": _number(value)}
    if isinstance(value, Mapping):
        return {"M": {_utf8(name): to_wire_value(inner) for name, inner in value.items()}}
    if isinstance(value, list | tuple):
        return {"L": [to_wire_value(inner) for inner in value]}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, set | frozenset):
        return {"SS": [_utf8(member) for member in value]}
    if value is None:
        return {"NULL": True}
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _utf8(text: str) -> str:
    # JSON can escape half a surrogate pair; DynamoDB's strings are UTF-8, which cannot hold one.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _number(value: float | Decimal) -> str:
    if isinstance(value, int):
        if abs(value) >= _TOO_LARGE:
            raise Invalid(f"{str(value)[:12]}… cannot be stored: whole numbers have at most {_DIGITS} digits")
        return str(value)
    size = abs(float(value))
    if not size < _LARGEST:
        raise Invalid(f"{value} cannot be stored: numbers must be between -{_LARGEST:g} and {_LARGEST:g}")
    return str(Decimal(str(value))) if size > _SMALLEST else "0"


def _from_wire_value(value: Mapping[str, Any]) -> Any:
    ((kind, held),) = value.items()
    if kind == "N":
        number = Decimal(held)
        return int(number) if number == number.to_integral_value() else float(number)
    if kind == "M":
        return from_wire(held)
    if kind == "L":
        return [_from_wire_value(inner) for inner in held]
    if kind == "SS":
        return set(held)
    return None if kind == "NULL" else held


def to_wire(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_wire_value(value) for name, value in item.items() if value is not None}


def from_wire(item: Mapping[str, Any]) -> Item:
    return {name: _from_wire_value(value) for name, value in item.items()}


def can_be_stored(hash_key: str, *range_keys: Any) -> bool:
    """Whether DynamoDB accepts these keys. It refuses keys that are too long or not UTF-8, even in reads."""
    bounded = [(hash_key, _LONGEST_HASH_KEY), *((key, _LONGEST_RANGE_KEY) for key in range_keys)]
    return all(_fits(key, most) for key, most in bounded if isinstance(key, str))


def _fits(key: str, most: int) -> bool:
    try:
        return len(key.encode()) <= most
    except UnicodeEncodeError:
        return False


def unknown_cursor() -> Invalid:
    """Returns the error for a cursor that this list did not return."""
    return Invalid(
        "the cursor does not belong to this list: send next_cursor of the previous page, or none for the first one",
        errors=[{"loc": ["query", "cursor"], "msg": "unknown cursor"}],
    )


def encode_cursor(key: Mapping[str, Any]) -> str:
    """Returns the key of a page's last item as a text. With this text, a caller asks for the next page."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> dict[str, Any]:
    """Returns the key that `encode_cursor` encoded. Raises Invalid for any other text."""
    try:
        key = read_json(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        key = None
    if not isinstance(key, dict) or not all(map(_is_key_value, key.values())):
        raise unknown_cursor()
    return key


def _is_key_value(value: Any) -> bool:
    """Whether the value can be part of a key: a string or a number. DynamoDB's form of both is a string."""
    held = list(value.items()) if isinstance(value, dict) else []
    if len(held) != 1 or not isinstance(held[0][1], str):
        return False
    kind, text = held[0]
    return bool(_NUMBER.fullmatch(text)) if kind == "N" else kind == "S" and text != "" and can_be_stored(text)


# --- writes
# Writes as values: stores build them, and the table performs a single one, or several in a transaction.


@dataclass(frozen=True, slots=True)
class Write:
    """One write, alone or in a transaction.

    `sets` are new values, `adds` are numbers or sets to add, `takes` are members to remove from sets, `removes` are
    attribute names. `condition` uses `#name` for an attribute and `:name` for an entry of `values`.
    """

    kind: str
    key: Key
    item: Mapping[str, Any] | None = None
    sets: Mapping[str, Any] | None = None
    adds: Mapping[str, int | set[str]] | None = None
    takes: Mapping[str, set[str]] | None = None
    removes: Sequence[str] = ()
    condition: str = ""
    values: Mapping[str, Any] | None = None


def put(item: Mapping[str, Any], condition: str = "", **values: Any) -> Write:
    return Write("Put", {"pk": item["pk"], "sk": item["sk"]}, item=item, condition=condition, values=values)


def put_new(item: Mapping[str, Any]) -> Write:
    """Returns the write that puts a new item. The write fails if an item with this key exists."""
    return put(item, "attribute_not_exists(#pk)")


def update(
    key: Key,
    sets: Mapping[str, Any] | None = None,
    *,
    adds: Mapping[str, int | set[str]] | None = None,
    takes: Mapping[str, set[str]] | None = None,
    removes: Sequence[str] = (),
    condition: str = "attribute_exists(#pk)",
    **values: Any,
) -> Write:
    """Returns the write that updates an existing item. With `condition=""`, the write also creates a missing item.

    A value of None is not written.
    """
    return Write("Update", key, sets=sets, adds=adds, takes=takes, removes=removes, condition=condition, values=values)


def delete(key: Key, condition: str = "", **values: Any) -> Write:
    return Write("Delete", key, condition=condition, values=values)


def check(key: Key, condition: str, **values: Any) -> Write:
    """Returns a part of a transaction that writes nothing. If its condition fails, the whole transaction fails."""
    return Write("ConditionCheck", key, condition=condition, values=values)


def names_in(expression: str) -> dict[str, str]:
    """Returns the attribute names in an expression, such as {"#state": "state"}."""
    words = "".join(char if char.isalnum() or char in "_#" else " " for char in expression).split()
    return {word: word[1:] for word in words if word.startswith("#")}


def as_request(table: str, write: Write) -> dict[str, Any]:
    """Returns the parameters of the DynamoDB call, or of the transaction's entry. Invalid if the key is too long."""
    if not can_be_stored(*write.key.values()):
        raise Invalid(
            "an id or a name in the request is too long to be stored, or is not valid UTF-8: send another one"
        )
    names = names_in(write.condition)
    values = {f":{name}": to_wire_value(value) for name, value in (write.values or {}).items()}
    request: dict[str, Any] = {"TableName": table}
    if write.kind == "Put":
        request["Item"] = to_wire(write.item or {})
    else:
        request["Key"] = to_wire(write.key)
    if write.kind == "Update":
        sets = {name: value for name, value in (write.sets or {}).items() if value is not None}
        clauses = []
        if sets:
            clauses.append("SET " + ", ".join(f"#{name} = :set_{name}" for name in sets))
        if write.adds:
            clauses.append("ADD " + ", ".join(f"#{name} :add_{name}" for name in write.adds))
        if write.takes:
            clauses.append("DELETE " + ", ".join(f"#{name} :take_{name}" for name in write.takes))
        # DynamoDB refuses a name that is set and removed: the new value wins, even if it is empty.
        removes = [name for name in write.removes if name not in sets]
        if removes:
            clauses.append("REMOVE " + ", ".join(f"#{name}" for name in removes))
        request["UpdateExpression"] = " ".join(clauses)
        changed = (*sets, *(write.adds or ()), *(write.takes or ()), *removes)
        names |= {f"#{name}": name for name in changed}
        values |= {f":set_{name}": to_wire_value(value) for name, value in sets.items()}
        values |= {f":add_{name}": to_wire_value(value) for name, value in (write.adds or {}).items()}
        values |= {f":take_{name}": to_wire_value(value) for name, value in (write.takes or {}).items()}
    if write.condition:
        request["ConditionExpression"] = write.condition
    if names:
        request["ExpressionAttributeNames"] = names
    if values:
        request["ExpressionAttributeValues"] = values
    return request


def below(count: str, bound: str, *, allows_none: bool) -> str:
    """Returns the condition that a count is below a bound.

    `allows_none`: whether the condition is also true if the item has no such count yet.
    """
    return f"attribute_not_exists(#{count}) OR #{count} < :{bound}" if allows_none else f"#{count} < :{bound}"


# --- conflicts
# Retries for writes that DynamoDB refuses because another transaction holds the same item.

T = TypeVar("T")
# Many submits of one project update its counters at once, and the last of them waits for seconds.
_TRIES = 9
_LONGEST_PAUSE = 0.5
_CONFLICTS = frozenset({"TransactionConflictException", "TransactionInProgressException"})
_TEMPORARY = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})


def reasons_of(error: ClientError) -> list[str | None]:
    """Returns for each write of a cancelled transaction why it was refused.

    The text is "None" if it was not refused.
    """
    return [reason.get("Code") for reason in error.response.get("CancellationReasons", [])]


def _is_temporary(error: ClientError) -> bool:
    """Whether a retry may succeed, because no condition failed and only load or another transaction was in the way."""
    code = error.response.get("Error", {}).get("Code")
    if code == "TransactionCanceledException":
        reasons = set(reasons_of(error))
        return bool(reasons & _TEMPORARY) and "ConditionalCheckFailed" not in reasons
    return code in _CONFLICTS


def settled(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Returns the result of `call`. Retries with jittered back-off while other transactions hold the same items.

    Raises Busy if they still hold the items after several tries.
    """
    for attempt in range(_TRIES):
        try:
            return call()
        except ClientError as error:
            if not _is_temporary(error):
                raise
        sleep(random.uniform(0.5, 1.5) * min(0.02 * 2**attempt, _LONGEST_PAUSE))  # noqa: S311
    raise Busy("too many requests change this record at once: try again in a few seconds")


# --- packing
# Packs many rows into one binary attribute: DynamoDB bills writes by size, and shards are written often.


def pack(rows: Iterable[Iterable[Any]]) -> bytes:
    text = json.dumps([list(row) for row in rows], separators=(",", ":"), ensure_ascii=False)
    return zlib.compress(text.encode(), 1)


def unpack(packed: bytes) -> list[list[Any]]:
    rows: list[list[Any]] = json.loads(zlib.decompress(packed))
    return rows


# --- due shards
# Which partition (shard) of the `due` index a record is written to.
#
# One partition of an index takes about 1,000 writes a second, which is too few under load. But a poll that reads 64
# partitions is expensive while there is nothing to do. So processes that write few records use shard 0. It also holds
# one entry for each other shard that may hold records: one read shows the poll which shards to read.
#
# A busy process writes to one other shard, chosen at random. More load means more processes, and so more shards.
#
# A crash cannot hide a record: the entry is written before the first record and renewed while the process writes, and
# the poll removes it only when no process can still rely on it (`SHARD_KEPT_SECONDS`).

logger = Logger(service="tidegate", child=True)

# A process writes this many records to shard 0 before it uses another shard.
_FEW_WRITES = 12
# An entry is renewed after this time, and the count of writes starts again.
_RENEWED_SECONDS = 300
# How long a shard without records stays listed: a process relies on its entry for 300 s, a write may come at the end of
# a function of 900 s, and the rest allows for a slow index and for clocks that differ.
SHARD_KEPT_SECONDS = 1800


class DueShards:
    """Chooses the shard for the due records of one process."""

    def __init__(self, clock: Clock, own: int | None = None) -> None:
        self._clock = clock
        self._own = own or random.randrange(1, keys.DUE_SHARDS)  # noqa: S311
        self._opened_at: float | None = None
        self._counted_since = 0.0
        self._count = 0

    def spread(self, writes: Sequence[Write], carry_out: Callable[[Write], object]) -> list[Write]:
        """Returns the writes, with the due records among them moved to the shard that was chosen.

        That is shard 0, or the process's own shard if the process writes many due records. Before records go to its own
        shard, `carry_out` gets the write of this shard's entry in shard 0.
        """
        due = sum(_is_due(write.item or write.sets) for write in writes)
        shard = self._shard(due, carry_out) if due else 0
        return [_moved(write, shard) for write in writes] if shard else list(writes)

    def spread_items(
        self, items: Sequence[Mapping[str, Any]], carry_out: Callable[[Write], object]
    ) -> list[Mapping[str, Any]]:
        """Like `spread`, for items that are put without a condition."""
        due = sum(map(_is_due, items))
        shard = self._shard(due, carry_out) if due else 0
        return [_with_shard(item, shard) if shard and _is_due(item) else item for item in items]

    def _shard(self, due: int, carry_out: Callable[[Write], object]) -> int:
        now = self._clock().timestamp()
        if not 0 <= now - self._counted_since < _RENEWED_SECONDS:
            self._counted_since, self._count = now, 0
        self._count += due
        if self._count <= _FEW_WRITES:
            return 0
        if self._opened_at is None or not 0 <= now - self._opened_at < _RENEWED_SECONDS:
            try:
                carry_out(_entry(self._own, now))
            except (ClientError, BotoCoreError, DomainError):
                logger.exception("the shard's entry could not be written: records go to shard 0", shard=self._own)
                return 0
            self._opened_at = now
        return self._own


def _entry(shard: int, now: float) -> Write:
    # Due at 0, so that the poll reads the entries first.
    due = keys.due("", 0, keys.SHARD_KIND)
    return update(keys.due_shard(shard), {"shard": shard, "opened_at": int(now), **due}, condition="")


_FIRST_SHARD = keys.due_partition(0)


def _is_due(given: Mapping[str, Any] | None) -> bool:
    return given is not None and given.get("due_pk") == _FIRST_SHARD and given["due_kind"] != keys.SHARD_KIND


def _with_shard(given: Mapping[str, Any], shard: int) -> dict[str, Any]:
    return {**given, "due_pk": keys.due_partition(shard)}


def _moved(write: Write, shard: int) -> Write:
    if _is_due(write.item):
        return replace(write, item=_with_shard(write.item or {}, shard))
    return replace(write, sets=_with_shard(write.sets or {}, shard)) if _is_due(write.sets) else write


@dataclass(eq=False, slots=True)
class RequestClaim:
    """A run's hold on the Idempotency-Key of its request.

    When a transaction creates something for the request, the same transaction also notes the new ids at the key
    (`noted`). So a repeat knows of them, wherever the first run died. If two runs work at once, only the run that holds
    the key creates something.

    `made`: the ids that were noted, perhaps by an earlier run. `seed` and `began` are the same in all runs of the
    request.
    """

    key: Key
    run: str
    seed: str
    began: str
    made: Mapping[str, str] | None = None


_NEVER_MS = 10**15
_claim: ContextVar[RequestClaim | None] = ContextVar("claim", default=None)


@contextmanager
def claimed(claim: RequestClaim) -> Iterator[None]:
    """Within this context, the first transaction that uses `noted` notes its new ids at the key of this claim."""
    before = _claim.set(claim)
    try:
        yield
    finally:
        _claim.reset(before)


def current_claim() -> RequestClaim | None:
    """Returns the claim of the request that is being served; None if the request has no Idempotency-Key."""
    return _claim.get()


def made_before() -> Mapping[str, str] | None:
    """Returns the ids that an earlier run of this request has noted. None if no run has created anything."""
    claim = _claim.get()
    return claim.made if claim else None


def noted(**ids: str) -> list[Write]:
    """Returns the writes that note a new record's ids at the request's Idempotency-Key, for the record's transaction.

    Empty if the request has no Idempotency-Key, or if ids are already noted.
    """
    claim = _claim.get()
    if claim is None or claim.made is not None:
        return []
    mine = "#run = :mine AND attribute_not_exists(#made)"
    # An earlier version, which may run during a deployment, looks only at this time before it takes over the key.
    sets = {"made": ids, "in_progress_expiration": _NEVER_MS}
    return [update(claim.key, sets, condition=mine, mine=claim.run)]


_WRITE_LIMIT = 25
_READ_LIMIT = 100
# After reading this much, a filtered list returns what it has found, with a cursor to continue from.
_FIND_PAGES = 20
_FIND_UNITS = 300


class ConditionFailed(Conflict):
    """The condition of a write was not met.

    `item`: for a single write, the stored item, or None if there is none. For a transaction, `failed` has the indexes
    of the refused writes. `met` has the items that these writes found, by the same indexes.
    """

    def __init__(
        self, *, item: Item | None = None, failed: Sequence[int] = (), met: Mapping[int, Item] | None = None
    ) -> None:
        super().__init__("the record was changed by another request at the same time: read it and try again")
        self.item = item
        self.failed = tuple(failed)
        self.met = met or {}


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: list[Item]
    cursor: str | None


_METERED: Any = {"ReturnConsumedCapacity": "TOTAL"}
_TAKEN_OVER = "another request with this Idempotency-Key has taken over from this one: repeat this request"


def _units(consumed: Any) -> float:
    """Returns the capacity units that a call used. 0 if the answer does not tell, as with an emulator."""
    given = consumed if isinstance(consumed, list) else [consumed or {}]
    return sum(float(each.get("CapacityUnits", 0)) for each in given)


class Table:
    """Reads and writes the DynamoDB table with plain Python values."""

    def __init__(
        self,
        client: DynamoDBClient,
        name: str,
        sleep: Callable[[float], None] = time.sleep,
        due_shards: DueShards | None = None,
    ) -> None:
        self._client = client
        self.name = name
        self._sleep = sleep
        self._due_shards = due_shards
        # Units that this process has used. A project pays for those of its requests (`web/api.py`).
        self.units_read = self.units_written = 0.0

    def _metered(self, consumed: Any) -> None:
        self.units_read += _units(consumed)

    def get(self, key: Key, *, consistent: bool = False) -> Item | None:
        """Returns the item with this key; None if there is no such item."""
        if not can_be_stored(*key.values()):
            return None
        answer = self._client.get_item(
            TableName=self.name, Key=to_wire(key), ConsistentRead=consistent, ReturnConsumedCapacity="TOTAL"
        )
        self._metered(answer.get("ConsumedCapacity"))
        return from_wire(answer["Item"]) if "Item" in answer else None

    def write(self, write: Write) -> Item:
        """Performs one write. Returns the new item, or the deleted item.

        Raises ConditionFailed if the condition of the write fails.
        """
        [write] = self._spread([write])
        request = as_request(self.name, write) | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"} | _METERED
        try:
            return settled(lambda: self._write(write, request), self._sleep)
        except self._client.exceptions.ConditionalCheckFailedException as error:
            met: Any = error.response.get("Item")
            raise ConditionFailed(item=from_wire(met) if met else None) from error

    def _spread(self, writes: Sequence[Write]) -> Sequence[Write]:
        return self._due_shards.spread(writes, self.write) if self._due_shards else writes

    def try_write(self, *writes: Write) -> bool:
        """Performs the writes, all or none. False if a condition failed, because another writer was first."""
        try:
            if len(writes) == 1:
                self.write(writes[0])
            else:
                self.transact(writes)
        except ConditionFailed:
            return False
        return True

    def _write(self, write: Write, request: dict[str, Any]) -> Item:
        if write.kind == "Put":
            self.units_written += _units(self._client.put_item(**request).get("ConsumedCapacity"))
            return dict(write.item or {})
        if write.kind == "Delete":
            old = self._client.delete_item(**request, ReturnValues="ALL_OLD")
            self.units_written += _units(old.get("ConsumedCapacity"))
            return from_wire(old.get("Attributes", {}))
        new = self._client.update_item(**request, ReturnValues="ALL_NEW")
        self.units_written += _units(new.get("ConsumedCapacity"))
        return from_wire(new["Attributes"])

    def transact(self, writes: Sequence[Write], token: str | None = None, *, returns_met: bool = False) -> None:
        """Performs the writes, all or none. Tries again if another transaction holds one of the items.

        Raises ConditionFailed if a condition fails. With `returns_met`, the error has the items that did not meet their
        conditions.
        """
        writes, claim = self._spread(writes), _claim.get()
        note = next((index for index, write in enumerate(writes) if claim and write.key == claim.key), None)
        more = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"} if returns_met or note is not None else {}
        request: dict[str, Any] = {
            "TransactItems": [{write.kind: as_request(self.name, write) | more} for write in writes],
            **({"ClientRequestToken": token} if token else {}),
            **_METERED,
        }
        try:
            answer = settled(lambda: self._client.transact_write_items(**request), self._sleep)
        except self._client.exceptions.TransactionCanceledException as error:
            reasons = reasons_of(error)
            failed = [index for index, reason in enumerate(reasons) if reason == "ConditionalCheckFailed"]
            if not failed:
                raise
            details: Any = error.response.get("CancellationReasons", [])
            met = {index: from_wire(details[index]["Item"]) for index in failed if details[index].get("Item")}
            if claim is None or note not in failed:
                raise ConditionFailed(failed=failed, met=met) from error
            if met.get(note, {}).get("run") != claim.run:
                raise IdempotencyInProgress(_TAKEN_OVER, retry_after=2) from error
            # Its own: the answer to the first try was lost, and the SDK repeated it.
        else:
            self.units_written += _units(answer.get("ConsumedCapacity"))
        if claim and note is not None:
            claim.made = (writes[note].sets or {})["made"]

    def query(
        self,
        pk: str,
        *,
        index: str | None = None,
        sk_prefix: str | None = None,
        sk_between: tuple[Any, Any] | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        consistent: bool = False,
        where: str = "",
        project: Sequence[str] = (),
        **values: Any,
    ) -> ItemPage:
        """Returns one page of a partition.

        `where` is a condition on the items that are returned. AWS bills all items that were read, also those that do
        not match.
        """
        if not can_be_stored(pk, sk_prefix, *(sk_between or ())):
            return ItemPage([], None)
        hash_name, range_name = _INDEX_KEYS[index]
        names = {"#h": hash_name} | names_in(where)
        params = {":h": to_wire_value(pk)} | {f":{name}": to_wire_value(value) for name, value in values.items()}
        expression = "#h = :h"
        if sk_prefix is not None:
            expression += " AND begins_with(#r, :r)"
            names["#r"], params[":r"] = range_name, to_wire_value(sk_prefix)
        elif sk_between is not None:
            expression += " AND #r BETWEEN :low AND :high"
            names["#r"] = range_name
            params[":low"], params[":high"] = (to_wire_value(bound) for bound in sk_between)
        request: dict[str, Any] = {
            "TableName": self.name,
            "KeyConditionExpression": expression,
            "ScanIndexForward": not newest_first,
            "ConsistentRead": consistent,
            "ReturnConsumedCapacity": "TOTAL",
        }
        if index:
            request["IndexName"] = index
        if where:
            request["FilterExpression"] = where
        if project:
            names |= {f"#{name}": name for name in project}
            request["ProjectionExpression"] = ", ".join(f"#{name}" for name in project)
        if limit:
            request["Limit"] = limit
        if cursor:
            request["ExclusiveStartKey"] = _start_key(cursor, index, pk, sk_prefix, sk_between)
        try:
            answer = self._client.query(**request, ExpressionAttributeNames=names, ExpressionAttributeValues=params)
        except ClientError as error:
            if cursor and code_of(error) == "ValidationException":
                raise unknown_cursor() from error
            raise
        self._metered(answer.get("ConsumedCapacity"))
        last = answer.get("LastEvaluatedKey")
        return ItemPage([from_wire(item) for item in answer["Items"]], encode_cursor(last) if last else None)

    def page(self, pk: str, *, limit: int, cursor: str | None, index: str | None = None, **options: Any) -> ItemPage:
        """Returns one page of a list. The page has a cursor only if more items follow.

        In contrast, a full page of `query` always has a cursor.
        """
        found = self.query(pk, index=index, limit=limit + 1, cursor=cursor, **options)
        if len(found.items) <= limit:
            return found
        return ItemPage(found.items[:limit], encode_cursor(self._key_of(found.items[limit - 1], index)))

    def find(
        self, pk: str, *, limit: int, cursor: str | None, wanted: Mapping[str, Any], index: str = "gsi1"
    ) -> ItemPage:
        """Returns the newest `limit` items that match, as they are now.

        Reads further pages while too few items are found. It looks for one item more than `limit`. If there is none,
        the page is the last one and has no cursor. After much reading, it returns fewer items, with a cursor.
        """
        where = " AND ".join(f"#{name} = :{name}" for name in wanted)
        found: list[Item] = []
        listed: dict[tuple[str, str], Item] = {}
        most_units = self.units_read + _FIND_UNITS
        for _ in range(_FIND_PAGES):
            if where:
                page = self.query(
                    pk, index=index, newest_first=True, limit=_READ_LIMIT, cursor=cursor, where=where, **wanted
                )
            else:
                page = self.page(pk, index=index, newest_first=True, limit=limit - len(found), cursor=cursor)
            listed |= {(item["pk"], item["sk"]): item for item in page.items}
            found += [
                item
                for item in self.current(page.items)
                if all(item.get(name) == value for name, value in wanted.items())
            ]
            cursor = page.cursor
            if len(found) > limit:
                last = listed[found[limit - 1]["pk"], found[limit - 1]["sk"]]
                return ItemPage(found[:limit], encode_cursor(self._key_of(last, index)))
            if cursor is None or (len(found) == limit and not where) or self.units_read >= most_units:
                break
        return ItemPage(found, cursor)

    def current(self, listed: Sequence[Item]) -> list[Item]:
        """Returns the items of an index's page as they are now, without deleted items.

        An index is only eventually consistent. From the index alone, a list could show a record as running after GET
        has shown that it has ended.
        """
        wanted = [{"pk": item["pk"], "sk": item["sk"]} for item in listed]
        found = {(item["pk"], item["sk"]): item for item in self.batch_get(wanted, consistent=True)}
        return [found[place] for item in listed if (place := (item["pk"], item["sk"])) in found]

    @staticmethod
    def _key_of(item: Item, index: str | None) -> dict[str, Any]:
        return to_wire({name: item[name] for name in ("pk", "sk", *_INDEX_KEYS[index])})

    def count(self, pk: str, *, pages: int, consistent: bool = False) -> tuple[int, bool]:
        """Returns (number of items in the first `pages` pages of a partition, whether no further pages exist)."""
        request: dict[str, Any] = {
            "TableName": self.name,
            "KeyConditionExpression": "#h = :h",
            "ExpressionAttributeNames": {"#h": "pk"},
            "ExpressionAttributeValues": {":h": to_wire_value(pk)},
            "Select": "COUNT",
            "ConsistentRead": consistent,
            "ReturnConsumedCapacity": "TOTAL",
        }
        found = 0
        for _ in range(pages):
            answer = self._client.query(**request)
            self._metered(answer.get("ConsumedCapacity"))
            found += int(answer["Count"])
            if "LastEvaluatedKey" not in answer:
                return found, True
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return found, False

    def query_all(self, pk: str, **options: Any) -> Iterator[Item]:
        """Yields every item of one partition, page by page. The options are those of `query`."""
        cursor: str | None = None
        while True:
            page = self.query(pk, cursor=cursor, **options)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def batch_get(self, keys: Iterable[Key], *, consistent: bool = False) -> list[Item]:
        """Returns the items that exist, in any order. Raises Busy if DynamoDB throttles for too long."""
        wanted = [to_wire(key) for key in keys if can_be_stored(*key.values())]
        found: list[Item] = []
        attempt = 0
        while wanted:
            asked, wanted = wanted[:_READ_LIMIT], wanted[_READ_LIMIT:]
            request: Any = {self.name: {"Keys": asked, "ConsistentRead": consistent}}
            answer: Any = self._client.batch_get_item(RequestItems=request, ReturnConsumedCapacity="TOTAL")
            self._metered(answer.get("ConsumedCapacity"))
            found.extend(from_wire(item) for item in answer["Responses"].get(self.name, []))
            left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            attempt = self._after_unprocessed(bool(left), attempt)
            wanted = [*left, *wanted]
        return found

    def batch_put(self, items: Iterable[Mapping[str, Any]], note: Sequence[Write] = ()) -> None:
        """Puts items without a condition. Use it only for new records, or if all writers write the same.

        `note`: the writes of `noted`. If there are any, the first items are put in one transaction with them.
        """
        given = list(items)
        if note:
            self.transact([*map(put, given[:_WRITE_LIMIT]), *note])
            given = given[_WRITE_LIMIT:]
        placed = self._due_shards.spread_items(given, self.write) if self._due_shards else given
        self._batch_write({"PutRequest": {"Item": to_wire(item)}} for item in placed)

    def batch_delete(self, keys: Iterable[Key]) -> None:
        stored = (key for key in keys if can_be_stored(*key.values()))
        self._batch_write({"DeleteRequest": {"Key": to_wire(key)}} for key in stored)

    def _batch_write(self, requests: Iterable[Any]) -> None:
        pending = list(requests)
        attempt = 0
        while pending:
            sent, pending = pending[:_WRITE_LIMIT], pending[_WRITE_LIMIT:]
            answer: Any = self._client.batch_write_item(RequestItems={self.name: sent}, **_METERED)
            self.units_written += _units(answer.get("ConsumedCapacity"))
            left = answer.get("UnprocessedItems", {}).get(self.name, [])
            attempt = self._after_unprocessed(bool(left), attempt)
            pending = [*left, *pending]

    def _after_unprocessed(self, some_left: bool, attempt: int) -> int:
        """Waits if DynamoDB did not process everything. Returns the number of the next attempt.

        Raises Busy after too many attempts.
        """
        if not some_left:
            return 0
        if attempt >= 8:
            raise Busy("DynamoDB throttles the table: try again in a few seconds")
        self._sleep(0.05 * 2**attempt)
        return attempt + 1


_INDEX_KEYS: dict[str | None, tuple[str, str]] = {
    None: ("pk", "sk"),
    "gsi1": ("gsi1pk", "gsi1sk"),
    "gsi2": ("gsi2pk", "gsi2sk"),
    "due": ("due_pk", "due_at"),
}


class Store:
    """The base of classes that store records of one kind in the table."""

    def __init__(self, table: Table) -> None:
        self._table = table


def _start_key(
    cursor: str, index: str | None, pk: str, sk_prefix: str | None, sk_between: tuple[Any, Any] | None
) -> dict[str, Any]:
    """Returns the key in a cursor. Raises Invalid if the key does not belong to this query.

    DynamoDB would refuse it.
    """
    key = decode_cursor(cursor)
    hash_name, range_name = _INDEX_KEYS[index]
    kinds = {name: "N" if name == "due_at" else "S" for name in ("pk", "sk", hash_name, range_name)}
    if {name: next(iter(value)) for name, value in key.items()} != kinds or key[hash_name] != {"S": pk}:
        raise unknown_cursor()
    place = key[range_name].get("S", "")
    outside = sk_between is not None and range_name != "due_at" and not sk_between[0] <= place <= sk_between[1]
    if outside or not place.startswith(sk_prefix or "") or not can_be_stored(key["pk"]["S"], key["sk"]["S"], place):
        raise unknown_cursor()
    return key
