"""Tests of environments/sql_agent: comparison of rows, hostile SQL, tools, questions, and rollouts."""

from __future__ import annotations

import importlib
import itertools
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row
from toy_envs import generate_sync, scripted_client

import rove as vf

vf.load_environment("sql_agent")
agent: Any = importlib.import_module("sql_agent")
databases: Any = importlib.import_module("sql_agent.databases")
queries: Any = importlib.import_module("sql_agent.queries")
questions: Any = importlib.import_module("sql_agent.questions")


def values(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.error is None, record.error
    assert record.scores is not None
    return {**record.scores.rewards, **record.scores.metrics}


def open_shop() -> Any:
    return closing(queries.connect(databases.image("shop", "test")))


# Comparison of rows

cells = st.one_of(
    st.sampled_from(["Ada", "Ben", "x y"]), st.integers(-3, 3), st.integers(-300, 300).map(lambda n: n / 100)
)
tables = st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), max_size=4))


def same_by_permutations(rows: list[list[Any]], other_rows: list[list[Any]]) -> bool:
    """Return whether the rows are equal in any order, by trying all permutations."""

    def equal(first: Any, second: Any) -> bool:
        if isinstance(first, str) or isinstance(second, str):
            return first == second
        return abs(first - second) <= queries.TOLERANCE

    return len(rows) == len(other_rows) and any(
        all(len(a) == len(b) and all(map(equal, a, b)) for a, b in zip(rows, order))
        for order in itertools.permutations(other_rows)
    )


@given(tables, tables)
def test_unordered_rows_are_equal_if_some_permutation_matches(rows, other_rows):
    assert queries.same(rows, other_rows, ordered=False) == same_by_permutations(rows, other_rows)


@given(tables, st.randoms())
def test_order_matters_only_if_ordered_is_true(rows, rng):
    mixed = rng.sample(rows, len(rows))
    assert queries.same(rows, mixed, ordered=False)
    assert queries.same(rows, rows, ordered=True)
    equal_in_place = all(same_by_permutations([a], [b]) for a, b in zip(rows, mixed))
    assert queries.same(rows, mixed, ordered=True) == equal_in_place


@given(tables, st.floats(-0.004, 0.004))
def test_numbers_may_be_rounded(rows, error):
    near = [[cell if isinstance(cell, str) else cell + error for cell in row] for row in rows]
    assert queries.same(rows, near, ordered=True)
    assert queries.same(near, rows, ordered=False)


@given(tables.filter(bool), st.data())
def test_a_changed_cell_or_a_missing_row_makes_the_answer_wrong(rows, data):
    i = data.draw(st.integers(0, len(rows) - 1))
    changed = [list(row) for row in rows]
    changed[i][0] = "somebody else" if isinstance(changed[i][0], str) else changed[i][0] + 100
    assert not queries.same(rows, changed, ordered=True)
    assert not queries.same(rows, changed, ordered=False)
    assert not queries.same(rows, rows[1:], ordered=False)


@given(tables)
def test_reading_written_rows_gives_equal_rows(rows):
    assert queries.same(rows, queries.from_lines(queries.in_lines(rows)), ordered=True)


@each_row(
    ("reply", "rows", "equal"),
    [
        ("12.35", [(12.3456,)], True),
        ("12.36", [(12.3456,)], False),
        ("1,234.50", [(1234.5,)], True),
        ("ada abbot", [("Ada Abbot",)], True),
        ("| Ada | 3 |\n| Ben | 4 |", [("Ben", 4), ("Ada", 3)], True),
        ("Ada\n\nBen\n", [("Ben",), ("Ada",)], True),
        ("Ada | 3", [("Ada",)], False),
        ("Ada\nAda", [("Ada",)], False),
        ("NULL", [(None,)], True),
        ("0", [(None,)], False),
        ("nan", [("NaN",)], True),
        ("inf", [(1e308,)], False),
        ("", [], True),
    ],
)
def test_answers_are_parsed_as_rows(reply, rows, equal):
    assert queries.same(queries.from_lines(reply), rows, ordered=False) == equal


# Hostile SQL


class Attack(NamedTuple):
    sql: str
    error_pattern: str
    """Regular expression for the error message."""


BOMB = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
READ_ONLY = "not authorized: the database can only be read"
ATTACKS = [
    Attack("DROP TABLE customers", READ_ONLY),
    Attack("DELETE FROM customers", READ_ONLY),
    Attack("UPDATE products SET price = 0", READ_ONLY),
    Attack("INSERT INTO customers VALUES (99, 'x', 'y', 'z')", READ_ONLY),
    Attack("REPLACE INTO customers VALUES (1, 'x', 'y', 'z')", READ_ONLY),
    Attack("WITH x AS (SELECT 1) DELETE FROM customers", READ_ONLY),
    Attack("ALTER TABLE customers RENAME TO victims", READ_ONLY),
    Attack("CREATE TABLE mine (a)", READ_ONLY),
    Attack("CREATE TEMP TABLE mine AS SELECT 1", READ_ONLY),
    Attack("CREATE VIEW mine AS SELECT 1", READ_ONLY),
    Attack("CREATE VIRTUAL TABLE mine USING fts5(a)", READ_ONLY),
    Attack("ATTACH DATABASE 'stolen.db' AS stolen", READ_ONLY),
    Attack("DETACH DATABASE main", READ_ONLY),
    Attack("VACUUM INTO 'stolen.db'", "authorization denied|not authorized"),
    Attack("BEGIN EXCLUSIVE", READ_ONLY),
    Attack("SAVEPOINT here", READ_ONLY),
    Attack("ANALYZE", READ_ONLY),
    Attack("REINDEX customers", "not authorized|there is no query"),
    Attack("PRAGMA query_only = OFF", READ_ONLY),
    Attack("PRAGMA writable_schema = 1", READ_ONLY),
    Attack("PRAGMA temp_store_directory = '/'", READ_ONLY),
    Attack("SELECT * FROM pragma_database_list", "not authorized"),
    Attack("SELECT load_extension('evil')", "not authorized|no such function"),
    Attack("SELECT LOAD_EXTENSION('evil', 'main')", "not authorized|no such function"),
    Attack("SELECT fts3_tokenizer('simple')", "not authorized|no such function"),
    Attack("SELECT readfile('/etc/passwd')", "no such function"),
    Attack("SELECT random()", "not authorized"),
    Attack("SELECT hex(randomblob(4))", "not authorized"),
    Attack("SELECT 1; DROP TABLE customers", "one statement at a time"),
    Attack(f"{BOMB} SELECT max(i) FROM n", "interrupted: the query takes too long"),
    Attack(f"{BOMB} SELECT i FROM n ORDER BY i DESC", "interrupted: the query takes too long"),
    Attack(f"{BOMB} SELECT group_concat(i, 'xxxxxxxxxxxxxxxx') FROM n", "interrupted|too big"),
    Attack("SELECT count(*) FROM order_items a, order_items b, order_items c", "interrupted: the query takes too long"),
    Attack("SELECT zeroblob(1000000000)", "too big"),
    Attack("SELECT replace(hex(zeroblob(9000)), '0', '0123456789')", "too big"),
    Attack("SELECT 'x' LIKE '" + "%a" * 500 + "'", "pattern too complex"),
    Attack("SELECT " + "(" * 5000 + "1" + ")" * 5000, "too large|overflow|too big|too long"),
    Attack("SELECT '" + "x" * 20_000 + "'", "too big|too large|too long"),
    Attack("SELECT * FROM nowhere", "no such table: nowhere"),
    Attack("SELECT nowhere FROM customers", "no such column: nowhere"),
    Attack("SELEC 1", 'near "SELEC": syntax error'),
    Attack("SELECT 'a\0b'", "null character|unrecognized token|nul"),
    Attack("SELECT '\ud800'", "surrogates not allowed"),
    Attack("", "there is no query"),
    Attack("-- nothing", "there is no query"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.sql[:40].encode("ascii", "replace").decode())
def test_hostile_sql_is_rejected_with_a_message_and_changes_nothing(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with open_shop() as db:
        tables_before = {table: queries.run(db, f"SELECT * FROM {table}", 1000) for table in agent._tables(db)}
        with pytest.raises(ValueError, match=attack.error_pattern):
            queries.run(db, attack.sql, 30)
        assert {table: queries.run(db, f"SELECT * FROM {table}", 1000) for table in agent._tables(db)} == tables_before
        assert not db.in_transaction
    assert not list(tmp_path.iterdir())


def test_hostile_sql_in_rollouts_gets_no_reward_and_no_error():
    def hostile(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        attacks = [attack for attack in ATTACKS if "\ud800" not in attack.sql]
        if state["trajectory"]:
            return f"<answer>{attacks[state['example_id']].sql}</answer>"
        return vf.tool_call("run_query", sql=attacks[state["example_id"]].sql)

    env = vf.load_environment("sql_agent", num_examples=len(ATTACKS) - 1)
    for record in generate_sync(env, scripted_client(hostile)):
        [message_to_model] = [message["content"] for message in record.completion if message["role"] == "tool"]
        assert message_to_model.startswith("error: ")
        assert (record.reward, values(record)["errors_reported"]) == (0, 1)


@pytest.mark.broad
def test_all_reference_queries_stay_far_below_the_step_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "MAX_STEPS", queries.MAX_STEPS // 10)
    assert len(questions.make_rows(200, "limits", range(1, 6))) == 200


@each_row(
    "sql",
    [
        "SELECT name FROM sqlite_master",
        "EXPLAIN SELECT * FROM customers",
        "VALUES (1), (2)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT sum(i) FROM n",
        "SELECT name, rank() OVER (ORDER BY price) FROM products",
        "SELECT CAST(x'ff' AS TEXT), x'00ff', NULL, 1e300",
        "SELECT * FROM orders; -- all of them",
    ],
)
def test_reading_is_allowed(sql):
    with open_shop() as db:
        columns, rows = queries.run(db, sql, 30)
        assert columns
        assert 0 < len(rows) <= 31
        assert queries.as_table(columns, rows)


def test_long_results_are_truncated():
    with open_shop() as db:
        lines = agent.run_query("SELECT id, hex(zeroblob(500)) FROM customers ORDER BY id", db).splitlines()
        assert lines[-1] == "(only the first 30 rows are shown)"
        assert lines[1] == f"1 | {'0' * 100}"
        assert len(lines) == 1 + 30 + 1
        assert agent.run_query("SELECT id FROM customers WHERE id < 0", db) == "id\n(no rows)"


# Tools


def test_tools_describe_the_tables():
    with open_shop() as db:
        assert agent.list_tables(db).splitlines()[:3] == ["customers: 60 rows", "products: 40 rows", "orders: 180 rows"]
        created, header, *rows = agent.describe_table("customers", db).splitlines()
        assert created.startswith("CREATE TABLE customers (id INTEGER PRIMARY KEY")
        assert (header, len(rows)) == ("id | name | city | joined", 3)
        with pytest.raises(
            ValueError, match="there is no table 'customer'; the tables are customers, products, orders, order_items"
        ):
            agent.describe_table("customer", db)
        with pytest.raises(ValueError, match="there is no table"):
            agent.describe_table("customers'; DROP TABLE customers --", db)


def test_the_connection_is_hidden_from_the_model():
    env: Any = vf.load_environment("sql_agent")
    assert {tool["function"]["name"] for tool in env.tool_defs} == {"list_tables", "describe_table", "run_query"}
    assert "db" not in {name for tool in env.tool_defs for name in tool["function"]["parameters"]["properties"]}


def test_every_connection_is_closed_after_errors_and_limits():
    opened: list[sqlite3.Connection] = []

    def failing_policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        opened.append(state["db"])
        if state["example_id"] % 3 == 0:
            raise vf.InfraError("the endpoint is gone")
        return (
            "no answer"
            if state["example_id"] % 3 == 1
            else vf.tool_call("run_query", sql=f"{BOMB} SELECT max(i) FROM n")
        )

    env: Any = vf.load_environment("sql_agent", num_examples=6, max_turns=2)
    errors = [record.error is not None for record in generate_sync(env, scripted_client(failing_policy))]
    assert errors == [True, False, False] * 2
    assert len(set(map(id, opened))) == 6
    for db in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            db.execute("SELECT 1")


def test_a_running_query_is_stopped_before_its_database_is_closed_at_a_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "MAX_STEPS", 10**12)
    monkeypatch.setattr(queries, "MAX_SECONDS", 300.0)
    opened: list[sqlite3.Connection] = []

    def endless_query(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        opened.append(state["db"])
        return vf.tool_call("run_query", sql=f"{BOMB} SELECT max(i) FROM n")

    env: Any = vf.load_environment("sql_agent", num_examples=1)
    env.timeout_seconds = 0.3
    [record] = generate_sync(env, scripted_client(endless_query))
    assert record.stop_condition == "timeout_reached"
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[0].execute("SELECT 1")


# Questions


@pytest.mark.parametrize("schema", sorted(databases.SCHEMAS))
def test_a_database_depends_only_on_its_seed_and_is_consistent(schema):
    image = databases.image(schema, "0")
    databases.image.cache_clear()
    assert databases.image(schema, "0") == image
    assert databases.image(schema, "1") != image
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(image)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert sum(agent._count(db, table) for table in agent._tables(db)) > 300


def test_names_in_the_databases_are_unique():
    for schema, table, column in [
        ("shop", "customers", "name"),
        ("shop", "products", "name"),
        ("library", "authors", "name"),
        ("library", "members", "name"),
        ("library", "books", "title"),
        ("airline", "flights", "number"),
        ("airline", "airports", "city"),
        ("airline", "aircraft", "model"),
    ]:
        with closing(queries.connect(databases.image(schema, "names"))) as db:
            [row] = queries.run(db, f"SELECT COUNT(DISTINCT {column}), COUNT(*) FROM {table}", 1)[1]
            assert row[0] == row[1] > 0, (schema, table)


@pytest.mark.slow
def test_every_template_yields_questions():
    generated = {
        (row["info"]["schema"], re.sub(r"\d|'[^']*'", "", row["info"]["sql"]))
        for row in questions.make_rows(1500, "all", range(1, 6))
    }
    expected = {(template.schema, re.sub(r"\d|'[^']*'|{\w+}", "", template.sql)) for template in questions.templates()}
    assert generated == expected


def test_template_texts_have_the_gaps_of_their_queries_and_state_the_order():
    for template in questions.templates():
        assert questions.gaps_of(template.sql) == questions.gaps_of(template.text), template
        assert set(questions.gaps_of(template.text)) <= databases.GAPS[template.schema].keys()
        requests_order = bool(re.search(r"first\.|^In which month|^On which day", template.text))
        assert ("ORDER BY" in template.sql) == requests_order, template
        assert ("ORDER BY" in template.sql) == bool(re.search(r"LIMIT ({n}|1)$", template.sql)), template
    levels = Counter((template.schema, template.level) for template in questions.templates())
    assert len(levels) == 15
    assert min(levels.values()) >= 2


@pytest.mark.broad
def test_answers_are_the_query_results_and_limits_have_no_ties():
    for row in questions.make_rows(300, "answers", range(1, 6)):
        info = row["info"]
        with closing(sqlite3.connect(":memory:")) as db:
            db.deserialize(databases.image(info["schema"], info["database"]))
            rows = db.execute(info["sql"]).fetchall()
            assert queries.same(rows, queries.from_lines(row["answer"]), ordered=True)
            assert 0 < len(rows) <= questions.MOST_ROWS
            assert not any(cell is None for cells in rows for cell in cells)
            if "LIMIT" in info["sql"]:
                everything = db.execute(re.sub(r" LIMIT \d+$", "", info["sql"])).fetchall()
                keys = [cells[-1] for cells in everything]
                assert len(set(keys[: len(rows) + 1])) == len(keys[: len(rows) + 1])


@pytest.mark.slow
def test_questions_are_unique_and_evaluation_uses_other_databases():
    env = vf.load_environment("sql_agent", num_examples=800)
    parts = [env.get_dataset(), env.get_eval_dataset()]
    for examples in parts:
        distinct = {
            (example["prompt"][-1].content, example["info"]["database"], example["info"]["schema"])
            for example in examples
        }
        assert len(distinct) == 800
    train, evaluation = ({example["info"]["database"] for example in examples} for examples in parts)
    assert not train & evaluation


# Rollouts


@pytest.mark.broad
@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_solver_is_always_right_with_queries_and_with_values(level):
    env = vf.load_environment("sql_agent", num_examples=60, min_level=level, max_level=level)
    records = generate_sync(env, scripted_client(env.policies["solver"]))
    assert {record.info["level"] for record in records} == {level}
    assert {record.reward for record in records} == {1}
    assert {values(record)["answered_by_query"] for record in records} == {0, 1}


@pytest.mark.slow
def test_the_novice_answers_single_table_questions_only():
    env = vf.load_environment("sql_agent", num_examples=300)
    for record in generate_sync(env, scripted_client(env.policies["novice"])):
        if " JOIN " not in record.info["sql"] and "(SELECT" not in record.info["sql"]:
            assert record.reward == 1
    harder = vf.load_environment("sql_agent", num_examples=100, min_level=3, max_level=4)
    assert sum(record.reward for record in generate_sync(harder, scripted_client(harder.policies["novice"]))) < 10


@pytest.mark.parametrize(
    ("wrapped", "reward"),
    [
        ("{sql}", 1),
        ("{sql};", 1),
        ("```sql\n{sql}\n```", 1),
        ("```\n{sql};\n```", 1),
        ("WITH a AS ({sql}) SELECT * FROM a", 1),
        ("The query is {sql}", 0),
        ("SELECT * FROM nowhere", 0),
        ("", 0),
    ],
)
def test_answers_can_be_queries(wrapped, reward):
    env = vf.load_environment("sql_agent", num_examples=20, max_level=1)
    policy = lambda messages, state, rng: f"<answer>{wrapped.format(sql=state['info']['sql'])}</answer>"  # noqa: E731
    assert {record.reward for record in generate_sync(env, scripted_client(policy))} == {reward}


def test_without_tags_there_is_no_answer():
    env = vf.load_environment("sql_agent", num_examples=5)
    assert {
        record.reward for record in generate_sync(env, scripted_client(lambda messages, state, rng: state["answer"]))
    } == {0}


@pytest.mark.broad
def test_the_order_of_an_answer_counts_only_if_the_question_has_one():
    env = vf.load_environment("sql_agent", num_examples=150, min_level=2, max_level=4)

    def reversed_answer(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        lines = "\n".join(reversed(state["answer"].splitlines()))
        return f"<answer>{lines}</answer>"

    orders = set()
    for record in generate_sync(env, scripted_client(reversed_answer)):
        ordered = "LIMIT" in record.info["sql"] and len(record.answer.splitlines()) > 1
        assert record.reward == (0 if ordered else 1)
        orders.add(ordered)
    assert orders == {True, False}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_level": 0}, "need 1 <= min_level <= max_level <= 5"),
        ({"min_level": 4, "max_level": 2}, "need 1 <= min_level <= max_level <= 5"),
        ({"max_level": 6}, "need 1 <= min_level <= max_level <= 5"),
        ({"levels": 3}, "has no argument 'levels'"),
    ],
)
def test_invalid_settings_are_rejected(options, complaint):
    with pytest.raises(vf.ConfigError, match=complaint):
        vf.load_environment("sql_agent", **options)
