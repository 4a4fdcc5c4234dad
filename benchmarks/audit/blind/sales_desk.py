"""Sales desk: answer questions about a shop's orders with SQL."""

from __future__ import annotations

import itertools
import json
import random
import re
import sqlite3
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question about the shop's orders. The database (SQLite) has one table: orders(id, customer, product, region, "
    "quantity, price). Query it with run_sql, then reply with <answer>number</answer>."
)
CUSTOMERS = "Abbot Bellamy Castor Dunmore Eastley Farrow Gresham Holt Ingram Jessop".split()
PRODUCTS = "anvil bellows chisel drill file hammer lathe plane saw vise".split()
REGIONS = ["north", "south", "east", "west"]
MAX_ROWS, MAX_TICKS = 30, 2_000


def right_number(completion: vf.Messages, state: vf.State, parser: vf.XMLParser) -> float:
    """Return 1 if the reply is the result of the reference query."""
    try:
        given = float((parser.parse_answer(completion) or "").replace(",", ""))
    except ValueError:
        return 0.0
    (expected,) = state["db"].execute(state["info"]["sql"]).fetchone()
    return float(given == expected)


def num_queries(state: vf.State) -> float:
    """Return the number of statements that ran."""
    return float(state["queries"])


def _call(tool: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def analyst(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Run the reference query and report its result."""
    if not state["trajectory"]:
        return _call("run_sql", sql=state["info"]["sql"])
    (value,) = json.loads(messages[-1].content)[0]
    return f"<answer>{value}</answer>"


def counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Count all orders and report that number."""
    if not state["trajectory"]:
        return _call("run_sql", sql="SELECT COUNT(*) FROM orders")
    (value,) = json.loads(messages[-1].content)[0]
    return f"<answer>{value}</answer>"


class SalesEnv(vf.StatefulToolEnv):
    """An environment with one database per rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_tool(self.run_sql, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        ticks = itertools.count()
        db.set_progress_handler(lambda: next(ticks) > MAX_TICKS, 10_000)
        db.execute(
            "CREATE TABLE orders (id INTEGER, customer TEXT, product TEXT, region TEXT, quantity INTEGER, price INTEGER)"
        )
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", state["info"]["orders"])
        state.update(db=db, queries=0)

    def run_sql(self, sql: str, state: vf.State) -> list[list[Any]]:
        """Run one SQL statement and return at most 30 rows.

        Args:
            sql: the statement
        """
        rows = state["db"].execute(sql).fetchmany(MAX_ROWS)
        state["queries"] += 1
        return [list(row) for row in rows]

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.cleanup
    def close(self, state: vf.State) -> None:
        """Close the database."""
        if "db" in state:
            state["db"].close()


def _question(rng: random.Random, orders: list[list[Any]]) -> tuple[str, str]:
    order = rng.choice(orders)
    customer, product, region = order[1:4]
    return rng.choice(
        [
            (f"How many orders came from the {region}?", f"SELECT COUNT(*) FROM orders WHERE region = '{region}'"),
            (
                f"How many pieces of the {product} were ordered in total?",
                f"SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE product = '{product}'",
            ),
            (
                f"What is the revenue (quantity times price, summed up) from {customer}?",
                f"SELECT COALESCE(SUM(quantity * price), 0) FROM orders WHERE customer = '{customer}'",
            ),
            (
                f"How many different products did {customer} order?",
                f"SELECT COUNT(DISTINCT product) FROM orders WHERE customer = '{customer}'",
            ),
            (
                f"What is the revenue (quantity times price, summed up) in the {region} from orders of 5 pieces or more?",
                f"SELECT COALESCE(SUM(quantity * price), 0) FROM orders WHERE region = '{region}' AND quantity >= 5",
            ),
        ]
    )


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        orders = [
            [
                number,
                rng.choice(CUSTOMERS),
                rng.choice(PRODUCTS),
                rng.choice(REGIONS),
                rng.randint(1, 12),
                rng.randint(5, 90),
            ]
            for number in range(1, rng.randint(45, 70))
        ]
        text, sql = _question(rng, orders)
        text = re.sub(r"\?$", f"? (ledger {seed.split(':')[-1]} {index + 1})", text)
        rows.append({"question": text, "info": {"orders": orders, "sql": sql}})
    return rows


def load_environment(num_examples: int = 150, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions about random tables of orders.

    Args:
        num_examples: Number of questions for training, and for evaluation; each has its own table.
        seed: Random seed of the tables and questions.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([right_number], parser=parser)
    rubric.add_metric(num_queries)
    return SalesEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"analyst": analyst, "counter": counter},
        max_turns=max_turns,
    )
