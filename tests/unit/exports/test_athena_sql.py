"""Which SQL an export may run: statements that only read, and only tables of the granted databases."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.exports.direct import foreign_table, reads_only


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "select 1;",
        "\r\n-- a\r\n/* b */ WITH x AS (SELECT 1) SELECT * FROM x",
        "VALUES (1, 'drop; table')",
        "TABLE orders",
        "SHOW CREATE TABLE orders",
        "DESCRIBE orders",
        'SELECT "delete", "insert" FROM "into" -- DROP',
        "SELECT 1e5, .5, 1., 0xFF, 1_000, a.b.c[1].d FROM t WHERE x -> 'y;z' <> '--'",
    ],
)
def test_statement_that_reads_is_accepted(text: str) -> None:
    assert reads_only(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- SELECT 1",
        "/* SELECT 1",
        "--\rDROP TABLE x\nSELECT 1",
        "/**/--\r\rDELETE FROM x -- \nSELECT 1",
        "SELECT 1; DROP TABLE x",
        "SELECT 1 INTO x",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "SELECT 'open",
        "SELECT 1 \x00",
        "SELECT\x0b1",
        "--\u2028DROP TABLE x\nSELECT 1",
        "--\u0085DROP TABLE x\nSELECT 1",
        "\u00a0SELECT 1",
        "CREATE TABLE x AS SELECT 1",
        "selection",
        "PREPARE x FROM SELECT 1",
        "CALL system.drop()",
    ],
)
def test_statement_that_may_write_is_refused(text: str) -> None:
    assert not reads_only(text)


def first_words(text: str, line_ends: str) -> str:
    """What is left of a statement without comments, read character by character."""
    at = 0
    while at < len(text):
        if text.startswith("--", at):
            while at < len(text) and text[at] not in line_ends:
                at += 1
        elif text.startswith("/*", at) and "*/" in text[at + 2 :]:
            at = text.index("*/", at + 2) + 2
        elif text[at] in " \t\r\n":
            at += 1
        else:
            return text[at:].lower()
    return ""


PIECES = st.sampled_from(["--", "/*", "*/", "*", "/", "\n", "\r", "\r\n", " ", "x", "'", "\x0b", "\u2028", "SELECT "])


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES, max_size=12), st.sampled_from(["DROP TABLE x", "SELECT 1", "INSERT INTO x"]))
@example(["--", "\r"], "DROP TABLE x")
@example(["--", "\r", "DROP TABLE x", "\n", "SELECT 1"], "")
def test_accepted_statement_reads_wherever_a_comment_ends(pieces: list[str], rest: str) -> None:
    text = "".join(pieces) + rest
    if reads_only(text):
        for line_ends in ("\n", "\r\n"):
            assert first_words(text, line_ends).startswith("select")


OURS = [
    "SELECT o.id, o.total FROM orders o, shop.items AS i WHERE o.id = i.id GROUP BY o.id, o.total",
    "SELECT EXTRACT(YEAR FROM o.day), TRIM(BOTH ' ' FROM o.name) FROM orders o ORDER BY o.day, o.name",
    "SELECT a.x IS DISTINCT FROM a.y, a.z FROM orders a",
    "WITH a AS (SELECT 1), b AS (SELECT * FROM shop.x) SELECT f(a.x, b.y) FROM a, UNNEST(b.z, a.q) AS t(u, v)",
    'SELECT * FROM "awsdatacatalog"."Shop"."orders" JOIN (crm.people p JOIN orders USING (id, day)) ON p.id = 1',
    "SELECT * FROM (VALUES (1, 2)) AS t(a, b) JOIN x ON ARRAY[t.a, t.b] = x.c",
    "TABLE shop.orders",
    "SELECT 'x FROM bank.t', \"FROM bank.t\" /* FROM bank.t */ FROM orders -- JOIN bank.t",
]


@pytest.mark.parametrize("text", OURS)
def test_tables_of_granted_databases_are_accepted(text: str) -> None:
    assert reads_only(text)
    assert foreign_table(text, ["shop", "crm"]) is None


THEIRS = [
    "SELECT * FROM bank.t",
    'SELECT * FROM "bank" . /* x */ "t"',
    "SELECT 1.FROM bank.t",
    "SELECT 1.e5 FROM bank.t",
    "SELECT * FROM orders bank, bank.t",
    "SELECT * FROM orders AS window, bank.t",
    "SELECT * FROM orders limit, bank.t",
    "SELECT * FROM UNNEST(ARRAY[1]) WITH ORDINALITY AS t(a, b), bank.t",
    "SELECT * FROM a JOIN b ON a.x = b.y, bank.t",
    "SELECT * FROM a JOIN b USING (x), bank.t",
    "SELECT * FROM ((bank.t))",
    "SELECT * FROM (a JOIN bank.t ON true)",
    "SELECT (SELECT max(x) FROM bank.t) FROM orders",
    "SELECT EXTRACT(YEAR FROM (SELECT x FROM bank.t))",
    "SELECT 1 WHERE EXISTS (TABLE bank.t)",
    "SELECT * FROM TABLE(exclude_columns(input => TABLE(bank.t), columns => DESCRIPTOR(a)))",
    "SELECT * FROM TABLE(lake.system.query(query => 'SELECT 1'))",
    "SELECT 1 UNION TABLE bank.t",
    "TABLE bank.t",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM other.shop.orders",
    "SELECT * FROM shop.bank.t.x",
    "SELECT * FROM LATERAL (SELECT * FROM bank.t)",
    "WITH orders AS (SELECT * FROM bank.t) SELECT * FROM orders",
    "SHOW TABLES IN bank",
    "DESCRIBE bank.t",
]


@pytest.mark.parametrize("text", THEIRS)
def test_table_of_another_database_is_refused(text: str) -> None:
    assert foreign_table(text, ["shop", "crm"]) is not None


@pytest.mark.parametrize(
    "text", ["SELECT 1.e5FROM bank.t", "SELECT 1.5FROM bank.t", "SELECT .5FROM bank.t", "SELECT 1FROM bank.t"]
)
def test_number_that_ends_in_a_word_is_refused(text: str) -> None:
    """Whether the word is part of the number differs between programs."""
    assert not reads_only(text)


# Clauses that may stand before `, bank.t` or `JOIN bank.t`, with names that look like other clauses.
NAMES = st.sampled_from(["orders", "limit", "offset", "fetch", "window", '"where"', "shop.x", '"group by"', "first"])
TABLES = st.builds(
    "{} {}".format,
    st.one_of(NAMES, st.builds("(SELECT a.b, c.d FROM {} WHERE a.b > 1 ORDER BY 1)".format, NAMES)),
    st.one_of(
        st.just(""), st.builds("AS {}".format, st.sampled_from(["o", "limit", "window", "bank", '"from"', "t(a, b)"]))
    ),
)
JOINS = st.sampled_from([", ", " CROSS JOIN ", " -- x\n, ", " , /* ) */ ", " NATURAL JOIN "])
BLANKS = st.sampled_from(["", " ", "/**/", "\n"])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(TABLES, JOINS), max_size=5), BLANKS, BLANKS)
def test_foreign_table_is_found_after_any_other_tables(tables: list[tuple[str, str]], left: str, right: str) -> None:
    before = "".join(table + join for table, join in tables)
    text = f"SELECT x, y.z FROM {before}bank{left}.{right}t WHERE y.z = 1"
    assert foreign_table(text, ["shop"]) is not None
    assert foreign_table(text, ["shop", "bank"]) is None


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="SELECTFROM.,()'\"`-*/[];0x \n\rbank", max_size=60))
def test_any_text_is_judged_without_an_error(text: str) -> None:
    foreign_table(text, ["shop"])
    if reads_only(text):
        assert text.strip()


def test_comment_that_never_ends_is_refused_in_linear_time() -> None:
    """Each `/*` was searched to the end: 40,000 characters held a function for three seconds."""
    began = time.process_time()
    assert not reads_only("select " + "/* " * 30_000)
    assert time.process_time() - began < 0.25
