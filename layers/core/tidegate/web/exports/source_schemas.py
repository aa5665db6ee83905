"""Sources that an export reads directly, without an HTTP endpoint: S3, DynamoDB, Athena."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tidegate.web.schemas import Body, Text

Expression = Annotated[str, Field(min_length=1, max_length=4096)]


class S3Source(Body):
    """A CSV object with a header line, or an object of JSON lines. Not compressed, because ranges of it are read."""

    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    key: Annotated[str, Field(min_length=1, max_length=1024)]
    format: Literal["csv", "jsonl"] | None = None
    delimiter: Literal[",", ";", "\t", "|"] | None = None
    encoding: Literal["utf-8", "gb18030"] | None = None

    @model_validator(mode="after")
    def _detect_format(self) -> Self:
        ending = self.key.lower().rpartition(".")[2]
        if self.format is None:
            self.format = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(ending)  # type: ignore[assignment]
        if self.format is None:
            raise ValueError(
                "format (csv or jsonl) is required, because the key does not end in .csv, .jsonl or .ndjson"
            )
        return self


class DynamoSource(Body):
    """A DynamoDB query, with DynamoDB's own expression syntax."""

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
    def _check_read_only(self) -> Self:
        from tidegate.exports.direct.athena_query import reads_only

        if not reads_only(self.sql):
            raise ValueError("sql must be a read-only statement: SELECT, WITH, VALUES, TABLE, SHOW or DESCRIBE")
        return self


class DirectSource(Body):
    """Exactly one of the three. The stack's parameters and the project's `read_from` must allow it."""

    s3: S3Source | None = None
    dynamodb: DynamoSource | None = None
    athena: AthenaSource | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(each is not None for each in (self.s3, self.dynamodb, self.athena)) != 1:
            raise ValueError("must have exactly one of s3, dynamodb and athena")
        return self

    def as_data(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)
