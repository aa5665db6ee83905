"""Base classes and field types of request bodies and answers.

A body or an answer can take its fields from a record (`records.py`), with types, limits and descriptions:

    class BatchBody(Body, record=NewBatch): …     all fields, as they are given
    class BatchPatch(Body, changes=Batch): …      the fields that may be changed later; none of them is required
    class BatchAnswer(Answer, record=Batch): …    the fields that are shown

The class itself declares the fields that the record does not have. It may also declare a field of the record with
another type. Such a field keeps the record's description, unless it has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.files.model import FileName, FilePath, FileSize, Signature, plain_name
from tidegate.records import F, Number, Priority, Text, Url, bare, declared

__all__ = ["F", "FileName", "FilePath", "FileSize", "Number", "Priority", "Signature", "Text", "Url", "plain_name"]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _FromRecord(ModelMetaclass):
    """Adds the fields of a record to a body or an answer, as the docstring of this module describes."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        record: type | tuple[type, ...] | None = None,
        changes: type | None = None,
        without: tuple[str, ...] = (),
        **options: Any,
    ) -> Any:
        own = namespace.get("__annotations__", {})
        annotations: dict[str, Any] = {}
        for source in record if isinstance(record, tuple) else filter(None, (record or changes,)):
            is_answer = any(issubclass(base, Answer) for base in bases)
            fields_of = _changed if changes else _shown_fields if is_answer else _given
            for field, kind, default, description in fields_of(source):
                if field in own:
                    described = "F(" in str(own[field])
                    annotations[field] = own[field] if described else Annotated[own[field], F(description)]
                elif field not in without:
                    annotations[field] = kind
                    namespace |= {} if default is MISSING else {field: default}
        if annotations:
            namespace["__annotations__"] = annotations | {k: v for k, v in own.items() if k not in annotations}
        return super().__new__(mcs, name, bases, namespace, **options)


# Name, type, default and description.
_Fields = Iterator[tuple[str, Any, Any, str]]


def _shown_fields(record: type) -> _Fields:
    for field in declared(record).values():
        if field.f.flat and field.f.shown:
            yield from _shown_fields(bare(field.type))
        elif field.f.shown:
            name = field.f.shown if isinstance(field.f.shown, str) else field.name
            kind, text = bare(field.type), field.f.description
            yield name, Annotated[kind, F(text)], None if _is_optional(kind) else MISSING, text


def _given(record: type) -> _Fields:
    for field in declared(record).values():
        default = field.default if field.factory is MISSING else Field(default_factory=field.factory)
        yield field.name, field.type, default, field.f.description


def _changed(record: type) -> _Fields:
    for field in declared(record).values():
        if field.f.changes:
            optional = field.type if _is_optional(bare(field.type)) else field.type | None
            yield field.name, Annotated[optional, F(field.f.description)], None, field.f.description


def never_null(record: type) -> list[str]:
    """Returns the names of the fields that callers may change, but may not remove with null."""
    return [each.name for each in declared(record).values() if each.f.changes and not _is_optional(bare(each.type))]


def _is_optional(kind: Any) -> bool:
    return type(None) in getattr(kind, "__args__", ())


# `defer_build`: a cold start builds only the models of the route that it serves.
class Body(BaseModel, metaclass=_FromRecord):
    """A request body. Unknown fields are refused and named."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


def without_defaults(schema: dict[str, Any]) -> None:
    """Removes the defaults from the schema of a body of changes. Such a body names it as its `json_schema_extra`.

    A field that is left out stays as it is. But generated clients would send the defaults that a schema names.
    """
    for field in schema["properties"].values():
        field.pop("default", None)


class Answer(BaseModel, metaclass=_FromRecord):
    """An answer. Fields without a value are left out."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, defer_build=True)


class Page(Answer):
    """Base class of lists, which add `items`."""

    next_cursor: Annotated[
        str | None, F("pass it as `cursor` to get the next page; null or absent on the last page")
    ] = None


class ErrorAnswer(Answer):
    code: Annotated[str, F("identifies the kind of error; stable")]
    detail: Annotated[str, F("what was wrong, with which value, and what to do; for people")]


class LinkAnswer(Answer):
    url: Annotated[str, F("a presigned URL, which needs no key")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]


JsonObject = dict[str, Any]


class ScheduleChange(Body):
    """The fields that a change of any schedule may have, besides those of its record."""

    paused: Annotated[bool | None, F("true stops the schedule, false resumes it; missed runs do not run later")] = None
    revision: Annotated[int | None, F("the `revision` that you read: 409 if it is another one now", ge=0, le=2**53)] = (
        None
    )


class ScheduleRun(Answer):
    """One run of a schedule."""

    due: Annotated[str, F("the time at which the run was due")]
    state: Annotated[
        Literal["started", "skipped"], F("`started`, or `skipped` if nothing was started or it was refused")
    ]
    reason: Annotated[str | None, F("why the run was skipped")] = None
    code: Annotated[str | None, F("the error of a run that failed; absent if the previous one still ran")] = None
