"""Base classes and field types of request bodies and answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tidegate.common.schedules import check_schedule
from tidegate.errors import Invalid
from tidegate.files.model import path_fault


# `defer_build`: a cold start builds only the models of the route that it serves.
class Body(BaseModel):
    """A request body. Unknown fields are refused and named."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


def without_defaults(schema: dict[str, Any]) -> None:
    """`json_schema_extra` of a body of changes, where a field that is left out stays as it is.

    Generated clients send the defaults that a schema names, and would reset every field.
    """
    for field in schema["properties"].values():
        field.pop("default", None)


class Answer(BaseModel):
    """An answer. Fields without a value are left out."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, defer_build=True)


class LinkAnswer(Answer):
    url: str
    expires_at: str


def _safe_path(value: str) -> str:
    fault = path_fault(value)
    if fault:
        raise ValueError(fault)
    return value


def _without_control_characters(value: str) -> str:
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise ValueError("must not contain control characters")
    return value


def plain_name(value: str) -> str:
    if "/" in value or "\\" in value or value in (".", ".."):
        raise ValueError("must be a file name without slashes, not a path")
    return _without_control_characters(value)


def _valid_schedule(value: str) -> str:
    try:
        check_schedule(value)
    except Invalid as error:
        raise ValueError(error.detail) from error
    return value


FilePath = Annotated[str, Field(min_length=1), AfterValidator(_safe_path)]
FileName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(plain_name)]
Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_without_control_characters)]
Signature = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$"), AfterValidator(str.lower)]
# S3's largest object.
FileSize = Annotated[int, Field(ge=0, le=5 * 1024**4)]
Number = Annotated[int, Field(ge=0, le=2**32 - 1)]
Schedule = Annotated[str, Field(max_length=200), AfterValidator(_valid_schedule)]
Priority = Annotated[int, Field(ge=1, le=10)]
JsonObject = dict[str, Any]
