from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import ValidationError

from tidegate.records import F, Text, declared, item_of, record_from, view_of
from tidegate.web.schemas import Answer, Body


class Span(NamedTuple):
    start: int
    end: int = 9


@dataclass(frozen=True, slots=True)
class Origin:
    file_id: Annotated[str, F("id of the file")]
    secret: str = "s"


@dataclass(frozen=True, slots=True)
class Place:
    path: Annotated[str, F("path of the file")]
    mode: Annotated[str | None, F("permissions", pattern="^[0-7]{4}$")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rate: Annotated[float, F("items per second", ge=0.5, le=10, changes=True)]
    name: Annotated[Text, F("a name for people")]
    note: Annotated[str | None, F("a remark", max_length=5, check=str.strip, changes=True)] = None
    spans: Annotated[tuple[Span, ...], F("times without work")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Options):
    work_id: Annotated[str, F("id of the work")]
    created_at: Annotated[str, F("when it was created", shown="create_time")]
    origin: Annotated[Origin | None, F("where the items come from", stored="source")] = None
    place: Annotated[Place, F(flat=True)] = Place("/a")
    extra: Annotated[dict[str, int], F("figures", stored=False)] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] = ()
    run: int = 0
    code_sha256: str | None = None

    @property
    def has_code(self) -> Annotated[bool, F("whether a code is set")]:
        return self.code_sha256 is not None


WORK = Work(
    rate=1.5,
    name="n",
    spans=(Span(1, 2),),
    work_id="w",
    created_at="now",
    origin=Origin("f"),
    place=Place("/b", "0644"),
    extra={"a": 1},
    pairs=((1, 2), (3, 4)),
)


def test_item_has_stored_fields_with_their_parts() -> None:
    assert item_of(WORK) == {
        "rate": 1.5,
        "name": "n",
        "spans": [[1, 2]],
        "work_id": "w",
        "created_at": "now",
        "source": {"file_id": "f", "secret": "s"},
        "path": "/b",
        "mode": "0644",
        "pairs": [[1, 2], [3, 4]],
        "run": 0,
    }


def test_record_is_read_back_from_its_item() -> None:
    assert record_from(Work, item_of(WORK), extra={"a": 1}) == WORK


def test_attributes_of_later_versions_are_ignored() -> None:
    assert record_from(Work, item_of(WORK) | {"pk": "x", "new": 1}, extra={"a": 1}) == WORK


def test_given_values_replace_those_of_the_item() -> None:
    made = record_from(Work, item_of(WORK), run=7, place=Place("/c"))
    assert (made.run, made.place, made.extra) == (7, Place("/c"), {})


def test_parts_may_come_as_mappings() -> None:
    made = record_from(Options, {"rate": 1, "name": "n", "spans": [{"start": 3}]})
    assert made.spans == (Span(3, 9),)


def test_view_has_shown_fields_with_a_value() -> None:
    assert view_of(WORK) == {
        "work_id": "w",
        "create_time": "now",
        "origin": {"file_id": "f"},
        "path": "/b",
        "mode": "0644",
        "extra": {"a": 1},
        "has_code": False,
        "rate": 1.5,
        "name": "n",
        "spans": [{"start": 1, "end": 2}],
    }


def test_own_fields_come_before_those_of_the_base() -> None:
    names = list(declared(Work))
    assert names[0] == "work_id"
    assert names.index("has_code") < names.index("rate")


class WorkBody(Body, record=Options):
    other: int = 0


class WorkPatch(Body, changes=Work):
    pass


class SourceAnswer(Answer, record=Origin):
    pass


class WorkAnswer(Answer, record=Work):
    origin: SourceAnswer | None = None
    progress: int


def test_body_has_fields_limits_and_defaults_of_the_record() -> None:
    schema = WorkBody.model_json_schema()
    assert schema["required"] == ["rate", "name"]
    assert schema["properties"]["rate"]["maximum"] == 10
    assert schema["properties"]["note"]["anyOf"][0]["maxLength"] == 5
    assert schema["properties"]["note"]["description"] == "a remark"
    assert WorkBody.model_validate({"rate": 1, "name": "n"}).model_dump()["spans"] == ()


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.4}, {"name": ""}, {"name": "a\nb"}, {"note": "123456"}, {"unknown": 1}, {"rate": None}]
)
def test_body_refuses_values_beyond_the_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkBody.model_validate({"rate": 1, "name": "n"} | wrong)


def test_check_changes_values_but_not_none() -> None:
    given = {"rate": 1, "name": "n"}
    assert WorkBody.model_validate(given | {"note": " a "}).model_dump()["note"] == "a"
    assert WorkBody.model_validate(given | {"note": None}).model_dump()["note"] is None


def test_changes_have_changeable_fields_only_and_require_none() -> None:
    schema = WorkPatch.model_json_schema()
    assert list(schema["properties"]) == ["rate", "note"]
    assert "required" not in schema
    with pytest.raises(ValidationError):
        WorkPatch.model_validate({"rate": 11})


def test_answer_has_shown_fields_without_limits() -> None:
    schema = WorkAnswer.model_json_schema()
    fields = schema["properties"]
    assert {"run", "code_sha256", "created_at", "pairs"}.isdisjoint(fields)
    assert fields["create_time"] == {
        "description": "when it was created",
        "title": "Create Time",
        "type": "string",
    }
    assert fields["mode"]["description"] == "permissions"
    assert "pattern" not in fields["mode"]["anyOf"][0]
    assert fields["origin"]["description"] == "where the items come from"
    assert {"progress", "rate", "has_code"} <= set(schema["required"])
    assert "note" not in schema["required"]


def test_answer_is_made_from_the_view() -> None:
    shown = WorkAnswer.model_validate(view_of(WORK) | {"progress": 1}).model_dump(mode="json", exclude_none=True)
    assert shown["spans"] == [[1, 2]]
    assert shown["origin"] == {"file_id": "f"}
    assert shown["has_code"] is False
    assert shown["progress"] == 1


@dataclass(frozen=True, slots=True)
class Presence:
    listen: tuple[str, ...]
    groups: tuple[str, ...] = ()


def test_empty_tuple_is_left_out_only_if_it_is_the_default() -> None:
    assert item_of(Presence(())) == {"listen": []}
    assert record_from(Presence, item_of(Presence(()))) == Presence(())
