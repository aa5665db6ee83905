"""The console offers everything that the API can do, or the table says why not."""

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
def test_console_calls_the_routes_listed_in_the_table(operation: str) -> None:
    assert called(operation), f"no script of the console calls {operation}"


def test_console_calls_only_routes_of_the_api() -> None:
    unknown = [call for call in calls() if not any(matches(name, *call[1:]) for name in operations())]
    assert unknown == []


@pytest.mark.parametrize("operation", [name for name in DOES if fields(name)])
def test_scripts_name_every_field_of_the_requests_they_send(operation: str) -> None:
    """tests/browser/test_fields.py fills in the forms; this test also covers requests of plain buttons."""
    script = related(operation)
    left_out = [name for name in fields(operation) if not sends(script, name)]
    assert [name for name in left_out if not {f"{operation}.{name}", f"{operation}.*"} & WITHOUT.keys()] == []


def test_reasons_name_existing_fields_only() -> None:
    gone = [name for name in WITHOUT if name.rpartition(".")[2] not in {"*", *fields(name.rpartition(".")[0])}]
    assert gone == []
