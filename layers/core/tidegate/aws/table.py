"""The DynamoDB table, in plain Python values. Stores provide the keys (`keys.py`) and the conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tidegate.aws.client_errors import code_of
from tidegate.aws.conflicts import reasons_of, settled
from tidegate.aws.due_shards import DueShards
from tidegate.aws.serialization import (
    Item,
    Key,
    can_be_stored,
    decode_cursor,
    encode_cursor,
    from_wire,
    to_wire,
    to_wire_value,
    unknown_cursor,
)
from tidegate.aws.writes import Write, as_request, names_in
from tidegate.errors import Busy, Conflict

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_WRITE_LIMIT = 25
_READ_LIMIT = 100
# A filtered list returns what it found after this many reads, with a cursor to continue from.
_FIND_PAGES = 20


class ConditionFailed(Conflict):
    """The condition of a write was not met.

    `item` is what a single write found. Of a transaction, `failed` are the indexes of the writes that were refused, and
    `met` the items that they found.
    """

    def __init__(
        self,
        *,
        item: Item | None = None,
        failed: Sequence[int] = (),
        met: Mapping[int, Item] | None = None,
    ) -> None:
        super().__init__("the record was changed by another request at the same time: read it and try again")
        self.item = item
        self.failed = tuple(failed)
        self.met = met or {}


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: list[Item]
    cursor: str | None


class Table:
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

    def get(self, key: Key, *, consistent: bool = False) -> Item | None:
        """The item; None if there is none."""
        if not can_be_stored(*key.values()):
            return None
        answer = self._client.get_item(TableName=self.name, Key=to_wire(key), ConsistentRead=consistent)
        return from_wire(answer["Item"]) if "Item" in answer else None

    def write(self, write: Write) -> Item:
        """Performs one write. Returns the new item, or a deleted one. ConditionFailed if its condition fails."""
        [write] = self._spread([write])
        request = as_request(self.name, write) | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            return settled(lambda: self._write(write, request), self._sleep)
        except self._client.exceptions.ConditionalCheckFailedException as error:
            met: Any = error.response.get("Item")
            raise ConditionFailed(item=from_wire(met) if met else None) from error

    def _spread(self, writes: Sequence[Write]) -> Sequence[Write]:
        return self._due_shards.spread(writes, self.write) if self._due_shards else writes

    def try_write(self, *writes: Write) -> bool:
        """Performs the writes, all or none. False if a condition failed: another writer was first."""
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
            self._client.put_item(**request)
            return dict(write.item or {})
        if write.kind == "Delete":
            old = self._client.delete_item(**request, ReturnValues="ALL_OLD")
            return from_wire(old.get("Attributes", {}))
        return from_wire(self._client.update_item(**request, ReturnValues="ALL_NEW")["Attributes"])

    def transact(self, writes: Sequence[Write], token: str | None = None, *, returns_met: bool = False) -> None:
        """Performs the writes, all or none. Retries transaction conflicts; ConditionFailed if a condition fails.

        With `returns_met`, the error has the items that did not meet their condition.
        """
        more = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"} if returns_met else {}
        writes = self._spread(writes)
        request: dict[str, Any] = {
            "TransactItems": [{write.kind: as_request(self.name, write) | more} for write in writes],
            **({"ClientRequestToken": token} if token else {}),
        }
        try:
            settled(lambda: self._client.transact_write_items(**request), self._sleep)
        except self._client.exceptions.TransactionCanceledException as error:
            reasons = reasons_of(error)
            failed = [index for index, reason in enumerate(reasons) if reason == "ConditionalCheckFailed"]
            if not failed:
                raise
            details: Any = error.response.get("CancellationReasons", [])
            met = {index: from_wire(details[index]["Item"]) for index in failed if details[index].get("Item")}
            raise ConditionFailed(failed=failed, met=met) from error

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
        """One page of one partition. `where` (`#name`, `:name`) filters after the read: AWS bills every item read."""
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
            request["ExclusiveStartKey"] = self._start_key(cursor, hash_name, pk)
        try:
            answer = self._client.query(**request, ExpressionAttributeNames=names, ExpressionAttributeValues=params)
        except ClientError as error:
            if cursor and code_of(error) == "ValidationException":
                raise unknown_cursor() from error
            raise
        last = answer.get("LastEvaluatedKey")
        return ItemPage([from_wire(item) for item in answer["Items"]], encode_cursor(last) if last else None)

    @staticmethod
    def _start_key(cursor: str, hash_name: str, pk: str) -> dict[str, Any]:
        """Checks that a cursor belongs to this partition: callers can send any text."""
        key = decode_cursor(cursor)
        if key.get(hash_name) != {"S": pk}:
            raise unknown_cursor()
        return key

    def find(
        self, pk: str, *, limit: int, cursor: str | None, wanted: Mapping[str, Any], index: str = "gsi1"
    ) -> ItemPage:
        """The newest `limit` items that match. Reads further pages while too few were found."""
        where = " AND ".join(f"#{name} = :{name}" for name in wanted)
        found: list[Item] = []
        for _ in range(_FIND_PAGES):
            size = limit - len(found) if not where else _READ_LIMIT
            page = self.query(pk, index=index, newest_first=True, limit=size, cursor=cursor, where=where, **wanted)
            if len(found) + len(page.items) > limit:
                found += page.items[: limit - len(found)]
                return ItemPage(found, encode_cursor(self._key_of(found[-1], index)))
            found += page.items
            cursor = page.cursor
            if cursor is None or len(found) == limit:
                break
        return ItemPage(found, cursor)

    @staticmethod
    def _key_of(item: Item, index: str) -> dict[str, Any]:
        return to_wire({name: item[name] for name in ("pk", "sk", *_INDEX_KEYS[index])})

    def count(self, pk: str, *, pages: int, consistent: bool = False) -> tuple[int, bool]:
        """(number of items in the first `pages` pages of a partition, whether that is all of it). Returns no items."""
        request: dict[str, Any] = {
            "TableName": self.name,
            "KeyConditionExpression": "#h = :h",
            "ExpressionAttributeNames": {"#h": "pk"},
            "ExpressionAttributeValues": {":h": to_wire_value(pk)},
            "Select": "COUNT",
            "ConsistentRead": consistent,
        }
        found = 0
        for _ in range(pages):
            answer = self._client.query(**request)
            found += int(answer["Count"])
            if "LastEvaluatedKey" not in answer:
                return found, True
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return found, False

    def query_all(self, pk: str, **options: Any) -> Iterator[Item]:
        """Every item of one partition, page by page. The options are those of `query`."""
        cursor: str | None = None
        while True:
            page = self.query(pk, cursor=cursor, **options)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def batch_get(self, keys: Iterable[Key], *, consistent: bool = False) -> list[Item]:
        """The items that exist, in any order. Busy if DynamoDB throttles for too long."""
        wanted = [to_wire(key) for key in keys if can_be_stored(*key.values())]
        found: list[Item] = []
        attempt = 0
        while wanted:
            asked, wanted = wanted[:_READ_LIMIT], wanted[_READ_LIMIT:]
            request: Any = {self.name: {"Keys": asked, "ConsistentRead": consistent}}
            answer: Any = self._client.batch_get_item(RequestItems=request)
            found.extend(from_wire(item) for item in answer["Responses"].get(self.name, []))
            left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            attempt = self._after_unprocessed(bool(left), attempt)
            wanted = [*left, *wanted]
        return found

    def batch_put(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Puts items without a condition: only for new records, or where every writer writes the same."""
        given = list(items)
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
            answer: Any = self._client.batch_write_item(RequestItems={self.name: sent})
            left = answer.get("UnprocessedItems", {}).get(self.name, [])
            attempt = self._after_unprocessed(bool(left), attempt)
            pending = [*left, *pending]

    def _after_unprocessed(self, some_left: bool, attempt: int) -> int:
        """Waits if DynamoDB left something undone. Returns the number of the next attempt; Busy after too many."""
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
