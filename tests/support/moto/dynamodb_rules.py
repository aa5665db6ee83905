"""What DynamoDB refuses and moto accepts, for every call of every test on a MotoCloud.

Each rule has DynamoDB's own message. Sources: the API reference, "Expressions", "Naming rules and data types" and
"Quotas" of docs.aws.amazon.com/amazondynamodb/latest/developerguide, and answers of DynamoDB Local.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from tests.support.template import resources

EXPRESSION_BYTES = 4096
MOST_OPERANDS = 100
MOST_DIGITS = 38
MOST_LEVELS = 32
_EXACT = Context(prec=1000)
LARGEST, SMALLEST = Decimal("9.9999999999999999999999999999999999999E+125"), Decimal("1E-130")

_EXPRESSIONS = (
    "ConditionExpression",
    "FilterExpression",
    "KeyConditionExpression",
    "UpdateExpression",
    "ProjectionExpression",
)
_COMPARED = frozenset({"S", "N", "B"})
_TOKEN = re.compile(r"\s*(:\w+|[#\w][\w.#\[\]]*|<>|<=|>=|[<>=(),+-])")
_KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "SET", "REMOVE", "ADD", "DELETE"})


class Schema(NamedTuple):
    types: Mapping[str, str]
    key: tuple[str, ...]
    indexes: Mapping[str, tuple[str, ...]]


@cache
def schemas() -> dict[str, Schema]:
    """The tables of the template, by their names on moto."""

    def names(schema: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
        return tuple(part["AttributeName"] for part in schema)

    found = {}
    for name, table in resources("AWS::DynamoDB::Table").items():
        properties = table["Properties"]
        types = {each["AttributeName"]: each["AttributeType"] for each in properties["AttributeDefinitions"]}
        indexes = {each["IndexName"]: names(each["KeySchema"]) for each in properties["GlobalSecondaryIndexes"]}
        found[name] = Schema(types, names(properties["KeySchema"]), indexes)
    return found


def check(operation: str, arguments: Mapping[str, Any]) -> None:
    """Raises ClientError, as DynamoDB would answer, for a call that it refuses."""
    for part, table in _parts(operation, arguments):
        _Part(operation, part, schemas().get(table)).check()
    if operation in ("BatchWriteItem", "BatchGetItem", "TransactWriteItems"):
        _check_duplicates(operation, arguments)


def _parts(operation: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each single action of a call, with its table's name."""
    if operation in ("TransactWriteItems", "TransactGetItems"):
        for action in arguments["TransactItems"]:
            (part,) = action.values()
            yield part, part["TableName"]
    elif operation == "BatchWriteItem":
        for table, requests in arguments["RequestItems"].items():
            yield from ((part, table) for request in requests for part in request.values())
    elif operation == "BatchGetItem":
        for table, asked in arguments["RequestItems"].items():
            yield {name: value for name, value in asked.items() if name != "Keys"}, table
            yield from (({"Key": key}, table) for key in asked["Keys"])
    elif operation in _SINGLE:
        yield arguments, arguments["TableName"]


_SINGLE = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "Scan")


def _check_duplicates(operation: str, arguments: Mapping[str, Any]) -> None:
    seen: set[tuple[str, str]] = set()
    for part, table in _parts(operation, arguments):
        schema, item = schemas().get(table), part.get("Key") or part.get("Item")
        if schema is None or item is None:
            continue
        place = table, str([item.get(name) for name in schema.key])
        if place in seen and operation == "TransactWriteItems":
            _refuse(operation, "Transaction request cannot include multiple operations on one item")
        if place in seen:
            _refuse(operation, "Provided list of item keys contains duplicates")
        seen.add(place)


def _refuse(operation: str, message: str) -> None:
    answer = {"Error": {"Code": "ValidationException", "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    raise ClientError(answer, operation)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _tokens(expression: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(expression))


class _Part:
    """One action: a put, an update, a query …"""

    def __init__(self, operation: str, part: Mapping[str, Any], schema: Schema | None) -> None:
        self.operation, self.part, self.schema = operation, part, schema
        self.values: Mapping[str, Any] = part.get("ExpressionAttributeValues", {})
        self.names: Mapping[str, str] = part.get("ExpressionAttributeNames", {})
        self.expressions = {kind: _tokens(part[kind]) for kind in _EXPRESSIONS if kind in part}

    def refuse(self, message: str) -> None:
        _refuse(self.operation, message)

    def check(self) -> None:
        for kind in self.expressions:
            size = len(self.part[kind].encode())
            if size > EXPRESSION_BYTES:
                limit = "Expression size has exceeded the maximum allowed size"
                self.refuse(f"Invalid {kind}: {limit}; expression size: {size}")
        self.check_used()
        for item in (self.part.get("Item"), self.part.get("Key"), self.values):
            for name, value in (item or {}).items():
                if not name:
                    self.refuse("One or more parameter values were invalid: Attribute name must not be empty")
                self.check_value(value, 1)
        for kind, tokens in self.expressions.items():
            if kind in ("ConditionExpression", "FilterExpression", "KeyConditionExpression"):
                self.check_conditions(kind, tokens)
        self.check_paths()
        if self.schema is not None:
            self.check_keys(self.schema)
        if self.schema is not None and self.operation == "Query":
            self.check_query(self.schema)

    # --- names and values

    def check_used(self) -> None:
        used = {token for tokens in self.expressions.values() for token in tokens}
        named = {word for token in used for word in re.split(r"[.\[\]]", token)}
        for field, given, of in (
            ("ExpressionAttributeValues", self.values, used),
            ("ExpressionAttributeNames", self.names, named),
        ):
            if field in self.part and not given:
                self.refuse(f"{field} must not be empty")
            if given and not self.expressions:
                self.refuse(f"{field} can only be specified when using expressions")
            if unused := sorted(given.keys() - of):
                self.refuse(f"Value provided in {field} unused in expressions: keys: {{{', '.join(unused)}}}")

    def check_value(self, value: Mapping[str, Any], level: int) -> None:
        ((kind, content),) = value.items()
        if level > MOST_LEVELS + 1:
            self.refuse("Nesting Levels have exceeded supported limits")
        if kind == "N":
            self.check_number(content)
        elif kind in ("SS", "NS", "BS"):
            if not content:
                self.refuse("One or more parameter values were invalid: An set may not be empty")
            if kind == "NS":
                for number in content:
                    self.check_number(number)
            if len({normalised(entry) if kind == "NS" else entry for entry in content}) < len(content):
                given = f"Input collection {list(content)} contains duplicates."
                self.refuse(f"One or more parameter values were invalid: {given}")
        elif kind == "L":
            for inner in content:
                self.check_value(inner, level + 1)
        elif kind == "M":
            for name, inner in content.items():
                if not name:
                    self.refuse("One or more parameter values were invalid: Attribute name must not be empty")
                self.check_value(inner, level + 1)

    def check_number(self, text: str) -> None:
        if _is_plain(text):
            return
        number = Decimal(text)
        if len(number.normalize(_EXACT).as_tuple().digits) > MOST_DIGITS:
            self.refuse("Attempting to store more than 38 significant digits in a Number")
        if abs(number) > LARGEST:
            self.refuse("Number overflow. Attempting to store a number with magnitude larger than supported range")
        if number and abs(number) < SMALLEST:
            self.refuse("Number underflow. Attempting to store a number with magnitude smaller than supported range")

    # --- conditions

    def check_conditions(self, kind: str, tokens: tuple[str, ...]) -> None:
        for at, token in enumerate(tokens):
            if token in ("<", "<=", ">", ">="):
                for operand in (tokens[at - 1], tokens[at + 1]):
                    self.check_operand(kind, token, operand)
            elif token.upper() == "BETWEEN":
                self.check_between(kind, tokens[at + 1], tokens[at + 3])
            elif token.upper() == "IN" and tokens[at + 1 : at + 2] == ("(",):
                count = 1 + tokens[at : tokens.index(")", at)].count(",")
                if count > MOST_OPERANDS:
                    message = "The IN operator is provided with too many operands"
                    self.refuse(f"Invalid {kind}: {message}; number of operands: {count}")
            elif (
                token == "begins_with" and (given := self.values.get(tokens[at + 4])) and not given.keys() & {"S", "B"}
            ):
                self.wrong_operand(kind, "begins_with", given)

    def check_operand(self, kind: str, operator: str, token: str) -> None:
        given = self.values.get(token)
        if given is not None and not given.keys() & _COMPARED:
            self.wrong_operand(kind, operator, given)

    def wrong_operand(self, kind: str, operator: str, given: Mapping[str, Any]) -> None:
        message = "Incorrect operand type for operator or function"
        self.refuse(f"Invalid {kind}: {message}; operator or function: {operator}, operand type: {_kind(given)}")

    def check_between(self, kind: str, lower: str, upper: str) -> None:
        for token in (lower, upper):
            self.check_operand(kind, "BETWEEN", token)
        low, high = self.values.get(lower), self.values.get(upper)
        if low is None or high is None:
            return
        if _kind(low) != _kind(high):
            self.refuse(f"Invalid {kind}: The BETWEEN operator requires same data type for lower and upper bounds")
        if _order(low) > _order(high):
            message = "The BETWEEN operator requires upper bound to be greater than or equal to lower bound"
            self.refuse(f"Invalid {kind}: {message}; lower bound operand: {low}, upper bound operand: {high}")

    # --- paths

    def check_paths(self) -> None:
        projected = [self.path(token) for token in self.expressions.get("ProjectionExpression", ()) if token != ","]
        self.check_overlap("ProjectionExpression", projected)
        self.check_overlap("UpdateExpression", [path for path, _ in self.assigned()])

    def check_overlap(self, kind: str, paths: list[str]) -> None:
        parts = sorted(re.split(r"\.|(?=\[)", path) for path in paths)
        for one, other in pairwise(parts):
            if other[: len(one)] == one:
                message = "Two document paths overlap with each other; must remove or rewrite one of these paths"
                self.refuse(f"Invalid {kind}: {message}; path one: {one}, path two: {other}")

    def path(self, token: str) -> str:
        return re.sub(r"#\w+", lambda found: self.names.get(found[0], found[0]), token)

    def assigned(self) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """The paths that an update changes, each with its value if that is given as it is."""
        tokens = self.expressions.get("UpdateExpression", ())
        clause, depth = "", 0
        for at, token in enumerate(tokens):
            depth += (token == "(") - (token == ")")
            if token.upper() in ("SET", "REMOVE", "ADD", "DELETE") and not depth:
                clause = token.upper()
            elif depth or token in "(),+-=" or token.startswith(":"):
                continue
            elif clause == "SET":
                if tokens[at + 1 : at + 2] == ("=",):
                    is_plain = tokens[at + 3 : at + 4] in ((), (",",)) or tokens[at + 3].upper() in _KEYWORDS
                    yield self.path(token), self.values.get(tokens[at + 2]) if is_plain else None
            else:
                yield self.path(token), None

    # --- keys

    def check_keys(self, schema: Schema) -> None:
        item: Mapping[str, Any] = self.part.get("Item") or {}
        changed = {path: value for path, value in self.assigned() if value is not None}
        for index, names in schema.indexes.items():
            for name in names:
                if (value := item.get(name, changed.get(name))) is not None:
                    self.check_index_key(index, name, value, schema.types[name])
        for given in (self.part.get("Key"), item):
            for name in schema.key if given else ():
                value = (given or {}).get(name)
                if value is None or _kind(value) != schema.types[name]:
                    self.refuse("The provided key element does not match the schema")
                elif not value[_kind(value)]:
                    message = "The AttributeValue for a key attribute cannot contain an empty string value"
                    self.refuse(f"One or more parameter values are not valid. {message}. Key: {name}")
        key: Mapping[str, Any] = self.part.get("Key") or {}
        if key and key.keys() != set(schema.key):
            self.refuse("The provided key element does not match the schema")

    def check_index_key(self, index: str, name: str, value: Mapping[str, Any], kind: str) -> None:
        if _kind(value) != kind:
            mismatch = f"Type mismatch for Index Key {name} Expected: {kind} Actual: {_kind(value)} IndexName: {index}"
            self.refuse(f"One or more parameter values were invalid: {mismatch}")
        if not value[kind]:
            empty = "The AttributeValue for a key attribute cannot contain an empty string value"
            self.refuse(f"One or more parameter values are not valid. {empty}. IndexName: {index}, IndexKey: {name}")

    # --- queries

    def check_query(self, schema: Schema) -> None:
        index = self.part.get("IndexName")
        keys = schema.indexes[index] if index else schema.key
        for token in self.expressions.get("FilterExpression", ()):
            if self.path(token).split(".")[0].split("[")[0] in keys and not token.startswith(":"):
                message = "Filter Expression can only contain non-primary key attributes"
                self.refuse(f"{message}: Primary key attribute: {self.path(token)}")
        conditions = dict(self.key_conditions())
        for name, given in conditions.items():
            for value in given:
                if _kind(value) != schema.types.get(name):
                    message = "Condition parameter type does not match schema type"
                    self.refuse(f"One or more parameter values were invalid: {message}")
                elif not value[_kind(value)]:
                    message = "The AttributeValue for a key attribute cannot contain an empty string value"
                    self.refuse(f"One or more parameter values are not valid. {message}. Key: {name}")
        start = self.part.get("ExclusiveStartKey")
        if start is not None:
            self.check_start(schema, keys, start, conditions)

    def key_conditions(self) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
        """The values with which each key is compared."""
        tokens = self.expressions.get("KeyConditionExpression", ())
        for at, token in enumerate(tokens):
            if token in ("=", "<", "<=", ">", ">="):
                yield self.path(tokens[at - 1]), self.given(tokens[at + 1])
            elif token.upper() == "BETWEEN":
                yield self.path(tokens[at - 1]), self.given(tokens[at + 1]) + self.given(tokens[at + 3])
            elif token == "begins_with":
                yield self.path(tokens[at + 2]), self.given(tokens[at + 4])

    def given(self, token: str) -> list[Mapping[str, Any]]:
        return [self.values[token]] if token in self.values else []

    def check_start(
        self,
        schema: Schema,
        keys: tuple[str, ...],
        start: Mapping[str, Any],
        conditions: Mapping[str, list[Mapping[str, Any]]],
    ) -> None:
        needed = {*schema.key, *keys}
        if start.keys() != needed or any(_kind(start[name]) != schema.types[name] for name in needed):
            self.refuse("The provided starting key is invalid")
        if [start[keys[0]]] != conditions.get(keys[0]):
            self.refuse("The provided starting key is outside query boundaries based on provided conditions")
        for name in needed:
            if not start[name][_kind(start[name])]:
                self.refuse("The provided starting key is invalid: an empty value")


def _kind(value: Mapping[str, Any]) -> str:
    return next(iter(value))


def _order(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "N":
        return Decimal(content)
    return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else bytes(content)


# --- numbers


def normalised(text: str) -> str:
    """A number as DynamoDB stores and returns it: without an exponent, and without leading and trailing zeros."""
    if _is_plain(text):
        return text
    number = Decimal(text)
    return format(number.normalize(_EXACT), "f") if number else "0"


def _is_plain(text: str) -> bool:
    """Whether it is a whole number that is stored as it is."""
    return len(text) <= MOST_DIGITS and text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0")


def with_normalised_numbers(arguments: Any) -> Any:
    """The same arguments, with numbers as DynamoDB stores them."""
    if isinstance(arguments, dict):
        if arguments.keys() == {"N"} and isinstance(arguments["N"], str):
            return {"N": normalised(arguments["N"])}
        if arguments.keys() == {"NS"} and isinstance(arguments["NS"], list):
            return {"NS": [normalised(number) for number in arguments["NS"]]}
        return {name: with_normalised_numbers(value) for name, value in arguments.items()}
    if isinstance(arguments, list):
        return [with_normalised_numbers(value) for value in arguments]
    return arguments
