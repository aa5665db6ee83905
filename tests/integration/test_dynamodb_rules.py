"""moto refuses what DynamoDB refuses: a test for each rule of tests/support/moto/dynamodb_rules.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.moto.cloud import MotoCloud

TABLE = {"TableName": "Table"}
KEY = {"pk": {"S": "p"}, "sk": {"S": "s"}}
NULL = {"NULL": True}


def put(**more: Any) -> tuple[str, dict[str, Any]]:
    return "put_item", {**TABLE, "Item": KEY | more}


def put_if(condition: str, **values: Any) -> tuple[str, dict[str, Any]]:
    given = {"ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}} if values else {}
    return "put_item", {**TABLE, "Item": KEY, "ConditionExpression": condition, **given}


def update(expression: str, **values: Any) -> tuple[str, dict[str, Any]]:
    given = {"ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}} if values else {}
    return "update_item", {**TABLE, "Key": KEY, "UpdateExpression": expression, **given}


def query(condition: str = "pk = :p", index: str | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    fields = {name: value for name, value in more.items() if name[0].isupper()}
    values = {f":{name}": value for name, value in ({"p": {"S": "p"}} | more).items() if not name[0].isupper()}
    place = TABLE | ({"IndexName": index} if index else {})
    return "query", {**place, "KeyConditionExpression": condition, "ExpressionAttributeValues": values, **fields}


def transact(*actions: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "transact_write_items", {"TransactItems": list(actions)}


def batch(*requests: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "batch_write_item", {"RequestItems": {"Table": list(requests)}}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"S": "x"}
    for _ in range(levels):
        value = {"M": {"a": value}}
    return value


def texts(count: int, sign: str = ":v") -> str:
    return ", ".join(f"{sign}{number}" for number in range(count))


def in_list(count: int) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {f"v{number}": {"S": str(number)} for number in range(count)}
    return query(FilterExpression=f"colour IN ({texts(count)})", **values)


START = {"pk": {"S": "p"}, "sk": {"S": "s"}}
INDEX_START = START | {"gsi1pk": {"S": "p"}, "gsi1sk": {"S": "1"}}

REFUSED = [
    # Values and names that no expression uses.
    (query(x={"S": "x"}), "unused in expressions: keys: {:x}"),
    (update("SET a = :a", a={"S": "1"}, b={"S": "2"}), "unused in expressions: keys: {:b}"),
    (query(ExpressionAttributeNames={"#x": "x"}), "unused in expressions: keys: {#x}"),
    (
        transact({"Delete": {**TABLE, "Key": KEY, "ExpressionAttributeValues": {":x": {"S": "x"}}}}),
        "can only be specified when using expressions",
    ),
    (
        transact({"Put": {**TABLE, "Item": KEY, "ConditionExpression": "a = :a", "ExpressionAttributeValues": {}}}),
        "ExpressionAttributeValues must not be empty",
    ),
    # Comparisons.
    (put_if("a < :n", n=NULL), "operand type: NULL"),
    (put_if(":n >= a", n={"BOOL": True}), "operand type: BOOL"),
    (put_if("a BETWEEN :n AND :b", n=NULL, b={"S": "b"}), "operand type: NULL"),
    (put_if("a BETWEEN :b AND :a", a={"S": "a"}, b={"S": "b"}), "upper bound to be greater than or equal"),
    (put_if("a BETWEEN :a AND :b", a={"N": "10"}, b={"N": "9"}), "upper bound to be greater than or equal"),
    (put_if("a BETWEEN :a AND :b", a={"N": "1"}, b={"S": "b"}), "same data type"),
    (put_if("begins_with(a, :n)", n={"N": "1"}), "operand type: N"),
    (query("pk = :p AND sk BETWEEN :b AND :a", a={"S": "a"}, b={"S": "b"}), "upper bound to be greater"),
    (query("pk = :p AND sk < :n", n={"N": "1"}), "does not match schema type"),
    (query("pk = :n", n={"N": "1"}, p={"S": "p"}), "unused"),
    (query("due_pk = :p AND due_at < :s", "due", s={"S": "1"}), "does not match schema type"),
    (query("gsi1pk = :p AND begins_with(gsi1sk, :s)", "gsi1", s={"S": ""}), "empty string value"),
    # Keys of indexes.
    (put(gsi1pk=NULL), "Type mismatch for Index Key gsi1pk Expected: S Actual: NULL"),
    (put(gsi1sk={"S": ""}), "empty string value"),
    (put(due_at={"S": "5"}), "Type mismatch for Index Key due_at Expected: N Actual: S"),
    (batch({"PutRequest": {"Item": KEY | {"gsi2pk": NULL}}}), "Type mismatch for Index Key gsi2pk"),
    (transact({"Put": {**TABLE, "Item": KEY | {"gsi2sk": {"N": "1"}}}}), "Type mismatch for Index Key gsi2sk"),
    (update("SET due_at = :a", a={"S": "5"}), "Type mismatch for Index Key due_at"),
    (update("SET a = :a, gsi1pk = :b REMOVE c", a={"S": "1"}, b=NULL), "Type mismatch for Index Key gsi1pk"),
    (update("SET gsi1pk = :b", b={"S": ""}), "empty string value"),
    (put(sk={"N": "1"}), "does not match the schema"),
    (put(sk={"S": ""}), "empty string value"),
    # Two actions on one key.
    (batch({"PutRequest": {"Item": KEY}}, {"DeleteRequest": {"Key": KEY}}), "contains duplicates"),
    (("batch_get_item", {"RequestItems": {"Table": {"Keys": [KEY, KEY]}}}), "contains duplicates"),
    (
        transact({"Put": {**TABLE, "Item": KEY}}, {"Delete": {**TABLE, "Key": KEY}}),
        "multiple operations on one item",
    ),
    # Filters, start keys, projections.
    (query(FilterExpression="sk <> :x", x={"S": "x"}), "non-primary key attributes"),
    (query("gsi1pk = :p", "gsi1", FilterExpression="gsi1sk <> :x", x={"S": "x"}), "non-primary key attributes"),
    (query(ExclusiveStartKey=START | {"pk": {"S": "other"}}), "outside query boundaries"),
    (query(ExclusiveStartKey={"pk": {"S": "p"}}), "starting key is invalid"),
    (query(ExclusiveStartKey=START | {"sk": {"N": "1"}}), "starting key is invalid"),
    (query(ExclusiveStartKey=INDEX_START), "starting key is invalid"),
    (query("gsi1pk = :p", "gsi1", ExclusiveStartKey=START), "starting key is invalid"),
    (query(ProjectionExpression="a, b, a"), "Two document paths overlap"),
    (query(ProjectionExpression="a.b, a"), "Two document paths overlap"),
    (update("SET a = :a REMOVE a", a={"S": "1"}), "Two document paths overlap"),
    # Values.
    (put(n={"N": "1" * 39}), "38 significant digits"),
    (put(n={"N": "1E+126"}), "Number overflow"),
    (put(n={"M": {"deep": {"L": [{"N": "1E-131"}]}}}), "Number underflow"),
    (update("SET n = :n", n={"NS": ["1", "1.0"]}), "contains duplicates"),
    (put(s={"SS": ["a", "a"]}), "contains duplicates"),
    (put(s={"SS": []}), "may not be empty"),
    (put(m={"M": {"": {"S": "x"}}}), "must not be empty"),
    (put(m=nested(33)), "Nesting Levels"),
    (in_list(101), "too many operands; number of operands: 101"),
    (put_if("attribute_not_exists(" + "a" * 4080 + ")"), "Expression size has exceeded"),
]

ACCEPTED = [
    query("pk = :p AND sk BETWEEN :a AND :b", a={"S": "a"}, b={"S": "a"}),
    query(ExclusiveStartKey=START),
    query("gsi1pk = :p", "gsi1", ExclusiveStartKey=INDEX_START),
    query(FilterExpression="gsi1sk <> :x", x={"S": "x"}),
    query(ProjectionExpression="a.b, a.c, ab"),
    put(due_at={"N": "5"}, due_pk={"S": "d"}),
    put(n={"N": "1" * 38}),
    put(n={"N": "9.9E+125"}),
    put(m=nested(32)),
    put(s={"S": ""}),
    put(s={"NS": ["1", "2"]}),
    in_list(100),
    put_if("attribute_not_exists(" + "a" * 240 + ")"),
    update("SET a = if_not_exists(a, :z) + :n, b = :n REMOVE gsi1pk", z={"N": "0"}, n={"N": "1"}),
    transact({"Put": {**TABLE, "Item": KEY}}, {"Delete": {**TABLE, "Key": KEY | {"sk": {"S": "other"}}}}),
    put_if("a = :n", n=NULL),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_dynamodb_refuses_is_refused(cloud: MotoCloud, call: tuple[str, dict[str, Any]], message: str) -> None:
    name, arguments = call
    with pytest.raises(ClientError) as refused:
        getattr(cloud.client("dynamodb"), name)(**arguments)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert message in refused.value.response["Error"]["Message"]


@pytest.mark.parametrize("call", ACCEPTED)
def test_what_dynamodb_accepts_is_accepted(cloud: MotoCloud, call: tuple[str, dict[str, Any]]) -> None:
    """A condition may fail all the same."""
    name, arguments = call
    dynamodb = cloud.client("dynamodb")
    with suppress(dynamodb.exceptions.ConditionalCheckFailedException):
        getattr(dynamodb, name)(**arguments)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_update_that_grows_an_item_past_400_kb_changes_nothing(cloud: MotoCloud, in_transaction: bool) -> None:
    dynamodb = cloud.client("dynamodb")
    dynamodb.put_item(**TABLE, Item=KEY | {"m": {"M": {"a": {"S": "x" * 300_000}}}})
    _, grow = update("SET m.b = :b", b={"S": "y" * 120_000})
    calls = {
        False: lambda: dynamodb.update_item(**grow),
        True: lambda: dynamodb.transact_write_items(TransactItems=[{"Update": grow}]),
    }
    with pytest.raises(ClientError) as refused:
        calls[in_transaction]()
    assert "exceeded the maximum allowed size" in str(refused.value.response)
    assert dynamodb.get_item(**TABLE, Key=KEY)["Item"]["m"]["M"].keys() == {"a"}

    dynamodb.update_item(**update("SET m.a = :b", b={"S": "y" * 390_000})[1])
    assert len(dynamodb.get_item(**TABLE, Key=KEY)["Item"]["m"]["M"]["a"]["S"]) == 390_000


@pytest.mark.parametrize(
    ("given", "stored"),
    [("1.50", "1.5"), ("1E2", "100"), ("007", "7"), ("-0", "0"), ("0.0", "0"), ("1.000", "1"), ("1E-3", "0.001")],
)
def test_numbers_are_stored_as_dynamodb_stores_them(cloud: MotoCloud, given: str, stored: str) -> None:
    dynamodb = cloud.client("dynamodb")
    dynamodb.put_item(**TABLE, Item=KEY | {"n": {"N": given}, "l": {"L": [{"N": given}]}, "s": {"NS": [given, "99"]}})
    item = dynamodb.get_item(**TABLE, Key=KEY)["Item"]
    assert (item["n"], item["l"]) == ({"N": stored}, {"L": [{"N": stored}]})
    assert sorted(item["s"]["NS"]) == sorted([stored, "99"])


def test_page_that_is_exactly_full_has_a_last_key(cloud: MotoCloud) -> None:
    dynamodb = cloud.client("dynamodb")
    for number in range(4):
        dynamodb.put_item(**TABLE, Item=KEY | {"sk": {"S": str(number)}})
    name, arguments = query(Limit=4)
    page = getattr(dynamodb, name)(**arguments)
    assert len(page["Items"]) == 4
    assert page["LastEvaluatedKey"] == KEY | {"sk": {"S": "3"}}
    after = dynamodb.query(**arguments, ExclusiveStartKey=page["LastEvaluatedKey"])
    assert (after["Items"], "LastEvaluatedKey" in after) == ([], False)
