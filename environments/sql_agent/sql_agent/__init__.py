"""SQL agent: questions about a database, which the model explores and queries with tools."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from contextlib import closing
from typing import Any

import rove as vf

from .databases import image
from .queries import SHOWN_ROWS, as_table, connect, from_lines, run, same
from .questions import MAX_LEVEL, MIN_LEVEL, MOST_ROWS, make_rows

SYSTEM_PROMPT = (
    "Use a read-only SQLite database to answer the question. Use the tools to look at its tables and to run queries. Then write "
    "your final answer in <answer> tags. The answer is either one SELECT statement that returns the requested rows:\n"
    "<answer>SELECT name, price FROM products WHERE price > 100</answer>\n"
    "or the rows themselves, with one row per line and | between columns:\n"
    "<answer>red kettle | 129.5\nblue desk | 180</answer>"
)
QUERY = re.compile(r"(?:```(?:sql)?\s*)?((?:select|with)\b.*?)(?:```)?", re.IGNORECASE | re.DOTALL)


def list_tables(db: sqlite3.Connection) -> str:
    """List the tables of the database and the number of rows in each."""
    return "\n".join(f"{table}: {_count(db, table)} rows" for table in _tables(db))


def describe_table(name: str, db: sqlite3.Connection) -> str:
    """Show the CREATE TABLE statement of a table and its first three rows.

    Args:
        name: The name of the table.
    """
    if name not in _tables(db):
        raise ValueError(f"there is no table '{name}'; the tables are {', '.join(_tables(db))}")
    _, [[created]] = run(db, f"SELECT sql FROM sqlite_master WHERE name = '{name}'", 1)
    return f"{created}\n{as_table(*run(db, f'SELECT * FROM {name} LIMIT 3', 3))}"


def run_query(sql: str, db: sqlite3.Connection) -> str:
    """Run a SELECT statement and return its result. Only the first rows of a long result are shown.

    Args:
        sql: One SELECT statement in SQLite's dialect.
    """
    return as_table(*run(db, sql, SHOWN_ROWS))


def _tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in run(db, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid", 100)[1]]


def _count(db: sqlite3.Connection, table: str) -> int:
    return run(db, f"SELECT COUNT(*) FROM {table}", 1)[1][0][0]


def rows_of(answer: str, info: dict[str, Any]) -> list[Any]:
    """Return the rows of an answer: the result of its query, or the listed values if it is not a query that runs."""
    query = QUERY.fullmatch(answer.strip())
    if query is not None:
        with closing(connect(image(info["schema"], info["database"]))) as db:
            try:
                return list(run(db, query[1], MOST_ROWS)[1])
            except ValueError:
                pass
    return from_lines(answer)


async def correct(completion: vf.Messages, answer: str, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for the right rows, in the right order if the question specifies one."""
    submitted = parser.parse_answer(completion)
    if submitted is None:
        return 0.0
    rows = await asyncio.to_thread(rows_of, submitted, info)
    return float(same(rows, from_lines(answer), ordered="ORDER BY" in info["sql"]))


def answered(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if there is an answer, right or wrong."""
    return float(bool(parser.parse_answer(completion)))


def answered_by_query(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is a query."""
    return float(QUERY.fullmatch((parser.parse_answer(completion) or "").strip()) is not None)


def errors_reported(completion: vf.Messages) -> float:
    """Return the number of tool calls that failed."""
    results = [str(message["content"]) for message in completion if message["role"] == "tool"]
    return float(sum(result.startswith("error: ") for result in results))


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Run the query from which the question was generated; answer with the query or with its result."""
    sql, turn = state["info"]["sql"], len(state["trajectory"])
    if turn < 2:
        return vf.tool_call("run_query", sql=sql) if turn else vf.tool_call("list_tables")
    values = messages[-1].content.partition("\n")[2]
    return f"<answer>{rng.choice([sql, values])}</answer>"


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Query one table; if the question requires several, count the rows of one."""
    sql, turn = state["info"]["sql"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("list_tables")
    table = rng.choice(messages[-1].content.splitlines()).partition(":")[0]
    if turn == 1:
        return vf.tool_call("describe_table", name=table)
    if " JOIN " in sql or "(SELECT" in sql:
        return f"<answer>SELECT COUNT(*) FROM {sql[sql.index(' FROM ') :].split()[1]}</answer>"
    return f"<answer>{sql}</answer>"


class SQLAgentEnv(vf.StatefulToolEnv):
    """An environment with three tools; each rollout has its own copy of a database."""

    def __init__(self, **kwargs: Any):
        super().__init__(error_formatter=lambda error: f"error: {error}", **kwargs)
        for tool in (list_tables, describe_table, run_query):
            self.add_tool(tool, args_to_skip=["db"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["db"] = connect(image(state["info"]["schema"], state["info"]["database"]))

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "db": state["db"]}

    async def post_rollout(self, state: vf.State) -> None:
        """Interrupt a query that is still running after a time limit, then wait for it as `ToolEnv` does."""
        if "db" in state:
            state["db"].interrupt()
        await super().post_rollout(state)

    @vf.cleanup
    def close(self, state: vf.State) -> None:
        if "db" in state:
            state["db"].close()


def load_environment(
    num_examples: int = 1000,
    seed: int = 0,
    min_level: int = MIN_LEVEL,
    max_level: int = MAX_LEVEL,
    max_turns: int = 10,
) -> vf.Environment:
    """Return an environment with questions about small databases.

    Args:
        num_examples: Number of questions in the dataset.
        seed: Random seed of the questions and databases; evaluation questions use separate databases.
        min_level, max_level: Difficulty, from 1 (one condition on one table) to 5 (missing rows, groups, shares, dates).
        max_turns: Maximum model turns, including turns with tool calls.
    """
    if not MIN_LEVEL <= min_level <= max_level <= MAX_LEVEL:
        raise vf.ConfigError(
            f"min_level is {min_level}, max_level {max_level}; need {MIN_LEVEL} <= min_level <= max_level <= {MAX_LEVEL}"
        )
    levels = range(min_level, max_level + 1)
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([correct], parser=parser)
    for metric in (answered, answered_by_query, errors_reported):
        rubric.add_metric(metric)
    return SQLAgentEnv(
        dataset=lambda: make_rows(num_examples, f"{seed}:train", levels),
        eval_dataset=lambda: make_rows(num_examples, f"{seed}:eval", levels),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "novice": novice},
        max_turns=max_turns,
    )
