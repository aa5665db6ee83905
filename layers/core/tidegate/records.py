"""How a record declares each field once, and what is derived from the declarations.

    @dataclass(frozen=True, slots=True)
    class Batch:
        name: Annotated[Text, F("a name for people")]
        note: Annotated[str | None, F("a remark", max_length=500, changes=True)] = None
        run: int = 0

A field without `F` is stored and not shown. The declarations define the item in the table (`item_of`, `record_from`),
what callers and callbacks get (`view_of`), and the bodies and answers of the API (`web/schemas.py`).

In modules with `from __future__ import annotations`, a declaration is a text, which is evaluated only when it is
needed. A function that only reads and writes items evaluates only the declarations of fields with parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from types import UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

R = TypeVar("R")
Converter = Callable[[Any], Any]


class F:
    """What a field is, besides its type: a sentence for people, limits of its values, and where the field appears.

    `stored`, `shown`: False if the field is not stored or not shown. A text is the name under which it is stored or
    shown. `changes`: whether callers may change the field later; with "always", even when the record has ended. `flat`:
    whether the parts of the field are stored and shown as fields of the record itself. `check`: a function that returns
    the value, or raises ValueError.

    Pydantic treats an `F` as a group of constraints, so Pydantic models can use an `F`, too. For a field that may be
    None, the limits stand beside the type (`Annotated[str | None, F("…", max_length=9)]`). They do not apply to None.
    """

    __slots__ = ("changes", "check", "description", "flat", "limits", "shown", "stored")
    __is_annotated_types_grouped_metadata__ = True

    def __init__(
        self,
        description: str = "",
        *,
        stored: bool | str = True,
        shown: bool | str = True,
        changes: bool | Literal["always"] = False,
        flat: bool = False,
        check: Converter | None = None,
        **limits: Any,
    ) -> None:
        self.description = description
        self.stored = stored
        self.shown = shown
        self.changes = changes
        self.flat = flat
        self.check = check
        # As pydantic's `Field` names them: ge, le, min_length, max_length, pattern, strict.
        self.limits = limits

    def __iter__(self) -> Iterator[Any]:
        from pydantic import AfterValidator, Field

        if self.limits:
            yield from Field(**self.limits).metadata
        if self.check:
            check = self.check
            yield AfterValidator(lambda value: None if value is None else check(value))
        if self.description:
            yield _Described(self.description)


class _Described(NamedTuple):
    text: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return handler(schema) | {"description": self.text}


def without_control_characters(value: str) -> str:
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise ValueError("must not contain control characters")
    return value


Text = Annotated[str, F(min_length=1, max_length=200, check=without_control_characters)]
Url = Annotated[str, F(min_length=1, max_length=2000)]
Priority = Annotated[int, F("1 (first) to 10 (last)", ge=1, le=10)]
# Numbers that callers choose for their own records.
Number = Annotated[int, F(ge=0, le=2**32 - 1)]


class Declared(NamedTuple):
    """A field's declaration. `type` includes the limits of the type's parts.

    `default` and `factory` are MISSING if a value must be given.
    """

    name: str
    type: Any
    f: F
    default: Any = MISSING
    factory: Any = MISSING


# --- declarations


@cache
def declared(record: Any) -> Mapping[str, Declared]:
    """Returns the fields and described properties of a record. Those of its own class come before inherited ones."""
    found: dict[str, Declared] = {}
    details = _defaults(record)
    for owner in record.__mro__[:-1]:
        for name in get_annotations(owner):
            if name in details and name not in found:
                kind, f = _evaluated(record, name)
                found[name] = Declared(name, kind, f, *details[name])
        for name, member in vars(owner).items():
            text = isinstance(member, property) and member.fget and get_annotations(member.fget).get("return")
            if isinstance(text, str) and text.startswith("Annotated[") and name not in found:
                kind, f = _evaluate(text, owner)
                f.stored = False
                found[name] = Declared(name, kind, f)
    return found


def _defaults(record: Any) -> dict[str, tuple[Any, Any]]:
    """Returns (default, factory) for each field of a dataclass or a named tuple."""
    if is_dataclass(record):
        return {each.name: (each.default, each.default_factory) for each in fields(record)}
    return {name: (record._field_defaults.get(name, MISSING), MISSING) for name in record._fields}


@cache
def _evaluated(record: Any, name: str) -> tuple[Any, F]:
    owner = next(each for each in record.__mro__ if name in get_annotations(each))
    return _evaluate(get_annotations(owner)[name], owner)


def _evaluate(text: Any, owner: type) -> tuple[Any, F]:
    if isinstance(text, ForwardRef):
        # A field of a named tuple.
        text = text.__forward_arg__
    if isinstance(text, str):
        text = eval(text, vars(sys.modules[owner.__module__]))  # noqa: S307 - an annotation of our own code
    given = [each for each in getattr(text, "__metadata__", ()) if isinstance(each, F)]
    # The last one is the field's own; one before it belongs to a type such as `Text`.
    return text, given[-1] if given else _PLAIN


_PLAIN = F(shown=False)


def bare(kind: Any) -> Any:
    """Returns the type without its declarations and limits. Values that are shown need no limits."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return bare(parts[0])
    if origin in (Union, UnionType):
        return Union[tuple(bare(part) for part in parts)]  # noqa: UP007 - the parts are known at run time
    if origin in (list, tuple, dict):
        return origin[tuple(part if part is Ellipsis else bare(part) for part in parts)]
    return kind


# --- items

_PLAIN_TYPES = frozenset({str, int, float, bool, bytes})


class _Plan(NamedTuple):
    """How a record is stored.

    `plain`: the name and the attribute of each plain field. `flat`: the name and the type of each flat field.
    `defaults`: those default values that are records or empty tuples.
    """

    plain: tuple[tuple[str, str], ...]
    flat: tuple[tuple[str, Any], ...]
    defaults: Mapping[str, Any]


@cache
def _plan(record: Any) -> _Plan:
    plain, flat = [], []
    for each in fields(record):
        # Most declarations do not say how the field is stored: they need not be evaluated.
        text = each.type if isinstance(each.type, str) else ""
        f = _evaluated(record, each.name)[1] if "stored=" in text or "flat=" in text or not text else _PLAIN
        if f.flat:
            flat.append((each.name, bare(_evaluated(record, each.name)[0])))
        elif f.stored:
            plain.append((each.name, f.stored if isinstance(f.stored, str) else each.name))
    defaults = {each.name: each.default for each in fields(record) if each.default == () or is_dataclass(each.default)}
    return _Plan(tuple(plain), tuple(flat), defaults)


def item_of(record: Any) -> dict[str, Any]:
    """Returns the attributes of a record for the table. A record inside this record becomes a map.

    Leaves out fields without a value. Also leaves out a field that still has its default, if that default is a record
    or an empty tuple.
    """
    kind: Any = type(record)
    plan = _plan(kind)
    item = {}
    for name, stored in plan.plain:
        value = getattr(record, name)
        if type(value) in _PLAIN_TYPES:
            item[stored] = value
        elif value is not None and value is not plan.defaults.get(name):
            item[stored] = _stored(value)
    for name, _ in plan.flat:
        part = getattr(record, name)
        # A part that is a named tuple has texts, which are left out if they are empty.
        item |= {k: v for k, v in part._asdict().items() if v} if hasattr(part, "_asdict") else item_of(part)
    return item


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_stored(part) for part in value]
    return item_of(value) if is_dataclass(value) else value


def record_from(record: type[R], item: Mapping[str, Any], **given: Any) -> R:
    """Returns the record in an item of the table, or in the fields of a checked request body. None counts as no value.

    `given`: values of further fields. Unknown attributes, such as those of a later version, are ignored.
    """
    kind: Any = record
    plan = _plan(kind)
    values: dict[str, Any] = {}
    for name, stored in plan.plain:
        value = item.get(stored)
        if value is not None:
            values[name] = value if type(value) in _PLAIN_TYPES else _converter(kind, name)(value)
    for name, part in plan.flat:
        known = {field: item[field] for field in getattr(part, "_fields", ()) if field in item}
        values[name] = part(**known) if known else record_from(part, item)
    return record(**values | given)


@cache
def _converter(record: Any, name: str) -> Converter:
    return _converter_to(bare(_evaluated(record, name)[0]))


def _converter_to(kind: Any) -> Converter:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((found for part in parts if (found := _converter_to(part)) is not _same), _same)
    if origin is tuple:
        inner = [_converter_to(part) for part in parts if part is not Ellipsis]
        if parts[-1] is Ellipsis:
            return lambda value: tuple(inner[0](part) for part in value)
        return lambda value: tuple(convert(part) for convert, part in zip(inner, value, strict=True))
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda value: value if isinstance(value, kind) else record_from(kind, _fields_of(value))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return lambda value: kind(*value) if isinstance(value, (list, tuple)) else kind(**_fields_of(value))
    return _same


def _fields_of(value: Any) -> Mapping[str, Any]:
    """Returns the fields of a nested value: of a map in an item, or of an object inside a request body."""
    return value if isinstance(value, Mapping) else vars(value)


def _same(value: Any) -> Any:
    return value


# --- views


def view_of(record: Any) -> dict[str, Any]:
    """What callers see of a record: its shown fields that have a value."""
    kind: Any = type(record)
    view: dict[str, Any] = {}
    for name, shown in _shown_names(kind):
        value = getattr(record, name)
        if not shown:
            view |= _viewed(value)
        elif value is not None:
            view[shown] = _viewed(value)
    return view


@cache
def _shown_names(record: Any) -> tuple[tuple[str, str], ...]:
    """Returns pairs of a field and its shown name.

    The shown name is empty for a flat field. The parts of a flat field are shown in its place.
    """
    return tuple(
        (each.name, "" if each.f.flat else each.f.shown if isinstance(each.f.shown, str) else each.name)
        for each in declared(record).values()
        if each.f.shown
    )


def _viewed(value: Any) -> Any:
    if is_dataclass(value):
        return view_of(value)
    if hasattr(value, "_asdict"):
        return value.view() if hasattr(value, "view") else value._asdict()
    return [_viewed(part) for part in value] if isinstance(value, tuple) else value
