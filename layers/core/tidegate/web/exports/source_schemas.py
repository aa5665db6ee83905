"""What an export may read without an endpoint: an S3 object, a DynamoDB query, SQL by Athena."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tidegate.web.schemas import Body, Text

Expression = Annotated[str, Field(min_length=1, max_length=4096)]


class S3Source(Body):
    """An object of CSV with a head line, or of JSON lines. Not packed: ranges of it are read."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    key: Annotated[str, Field(min_length=1, max_length=1024)]
    format: Literal["csv", "jsonl"] | None = None
    delimiter: Literal[",", ";", "\t", "|"] | None = None
    encoding: Literal["utf-8", "gb18030"] | None = None

    @model_validator(mode="after")
    def _has_a_format(self) -> Self:
        ending = self.key.lower().rpartition(".")[2]
        if self.format is None:
            self.format = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(ending)  # type: ignore[assignment]
        if self.format is None:
            raise ValueError("format is required where the key does not end in .csv, .jsonl or .ndjson")
        return self


class DynamoSource(Body):
    """A query with DynamoDB's own expressions."""

    table: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")]
    index: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{3,255}$")] | None = None
    key_condition: Expression
    values: Annotated[dict[str, Any], Field(min_length=1, max_length=100)]
    names: Annotated[dict[str, Text], Field(max_length=100)] | None = None
    filter: Expression | None = None
    attributes: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    newest_first: bool = False


class AthenaSource(Body):
    workgroup: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    sql: Annotated[str, Field(min_length=1, max_length=100_000)]
    database: Text | None = None
    catalog: Text | None = None

    @model_validator(mode="after")
    def _reads(self) -> Self:
        from tidegate.exports.direct.athena_query import reads_only

        if not reads_only(self.sql):
            raise ValueError("sql must be a statement that reads: SELECT, WITH, VALUES, TABLE, SHOW or DESCRIBE")
        return self


class DirectSource(Body):
    """One of the three. The operator's parameters must allow what it names."""

    s3: S3Source | None = None
    dynamodb: DynamoSource | None = None
    athena: AthenaSource | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.s3, self.dynamodb, self.athena)) != 1:
            raise ValueError("must hold one of s3, dynamodb and athena")
        return self

    def as_data(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)
