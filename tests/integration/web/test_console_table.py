"""The console does everything that the API does, or the table says why not."""

from __future__ import annotations

import pytest

from tests.support.console_routes import called, calls, fields, matches, operations, related, sends, table

DOES, DOES_NOT, WITHOUT = (table()[name] for name in ("does", "does_not", "without"))


def test_every_operation_is_in_the_table_once() -> None:
    missing = set(operations()) - set(DOES) - set(DOES_NOT)
    assert not missing, f"say in tests/support/console_routes.toml where the console does it, or why not: {missing}"
    assert set(DOES) | set(DOES_NOT) == set(operations())
    assert not set(DOES) & set(DOES_NOT)
    assert all(text.strip() for text in (*DOES.values(), *DOES_NOT.values(), *WITHOUT.values()))


@pytest.mark.parametrize("operation", DOES)
def test_console_calls_what_the_table_says_it_does(operation: str) -> None:
    assert called(operation), f"no script of the console calls {operation}"


def test_console_calls_nothing_but_the_api() -> None:
    unknown = [call for call in calls() if not any(matches(name, *call[1:]) for name in operations())]
    assert unknown == []


@pytest.mark.parametrize("operation", [name for name in DOES if fields(name)])
def test_scripts_that_call_it_name_every_field_of_the_request(operation: str) -> None:
    """tests/browser/test_fields.py fills in the forms; this one also holds for what a press of a button sends."""
    written = related(operation)
    left_out = [name for name in fields(operation) if not sends(written, name)]
    assert [name for name in left_out if not {f"{operation}.{name}", f"{operation}.*"} & WITHOUT.keys()] == []


def test_no_reason_is_given_for_a_field_that_is_not_there() -> None:
    gone = [name for name in WITHOUT if name.rpartition(".")[2] not in {"*", *fields(name.rpartition(".")[0])}]
    assert gone == []
