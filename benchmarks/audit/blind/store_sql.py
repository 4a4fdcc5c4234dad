"""Shop SQL: answer questions about the orders of a shop with SQL queries."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import Counter
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question about the shop's database with the tool query. The table orders has the columns id, customer, "
    "city, product, units, price (per unit, in dollars) and month (1 to 12). Give the final answer once in <answer> tags: a "
    "number, a name, or 'none' if no row fits."
)
CUSTOMERS = "Amber Boris Celia Derek Edith Frank Gilda Harry Isaac Julia Karl Lydia".split()
CITIES = "Bonn Cadiz Delft Espoo Ghent Linz".split()
PRODUCTS = "desk shelf sofa stool lamp rug bench vase".split()
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MAX_ROWS, MAX_STEPS = 50, 200

Row = tuple[int, str, str, str, int, int, int]


def _orders(seed: str) -> list[Row]:
    rng = random.Random(seed)
    home = {customer: rng.choice(CITIES) for customer in CUSTOMERS}
    orders = []
    for id in range(1, 61):
        customer = rng.choice(CUSTOMERS)
        product, month = rng.choice(PRODUCTS), rng.randint(1, 12)
        orders.append((id, customer, home[customer], product, rng.randint(1, 9), rng.randint(11, 180), month))
    return orders


def _question(orders: list[Row], rng: random.Random) -> tuple[str, str]:
    kind = rng.randrange(4)
    if kind == 0:
        customer = rng.choice(CUSTOMERS)
        total = sum(units * price for _, who, _, _, units, price, _ in orders if who == customer)
        text = f"How many dollars did {customer} spend in total?"
        return text, str(total) if total else "none"
    if kind == 1:
        city, month = rng.choice(CITIES), rng.randint(1, 12)
        units: Counter[str] = Counter()
        for _, _, where, product, count, _, when in orders:
            if where == city and when >= month:
                units[product] += count
        text = f"Which product sold the most units in {city} from month {month} to month 12?"
        top = units.most_common(2)
        if not top:
            return text, "none"
        return ("", "") if len(top) == 2 and top[0][1] == top[1][1] else (text, top[0][0])
    if kind == 2:
        product, month = rng.choice(PRODUCTS), rng.randint(4, 12)
        count = sum(units for _, _, _, what, units, _, when in orders if what == product and when < month)
        return f"How many units of the product {product} were sold before month {month}?", str(
            count
        ) if count else "none"
    customer, product = rng.choice(CUSTOMERS), rng.choice(PRODUCTS)
    prices = [price for _, who, _, what, _, price, _ in orders if who == customer and what == product]
    text = f"What is the highest price per unit that {customer} paid for the product {product}?"
    return text, str(max(prices)) if prices else "none"


def _normal(text: str) -> str:
    text = text.strip().strip(".").lower()
    number = re.fullmatch(r"\$?\s*(-?[\d,]*\.?\d+)\s*(?:dollars|units)?", text)
    if not number:
        return text
    value = float(number.group(1).replace(",", ""))
    return f"{value:.2f}"


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply has exactly one answer and it is right; 0 and 'none' are the same for sums."""
    last = completion[-1]
    answers = re.findall(r"<answer>(.*?)</answer>", last.content or "", re.DOTALL) if last.role == "assistant" else []
    given = [_normal(text) for text in answers]
    return float(given == [_normal(answer)] or (answer == "none" and given == [_normal("0")]))


def _sql(question: str) -> str:
    words = re.findall(r"\w+", question)
    if question.startswith("How many dollars"):
        return f"SELECT sum(units * price) FROM orders WHERE customer = '{words[4]}'"
    if question.startswith("Which product"):
        where = f"city = '{words[7]}' AND month >= {words[10]}"
        return f"SELECT product FROM orders WHERE {where} GROUP BY product ORDER BY sum(units) DESC LIMIT 1"
    if question.startswith("How many units"):
        return f"SELECT sum(units) FROM orders WHERE product = '{words[6]}' AND month < {words[-1]}"
    return f"SELECT max(price) FROM orders WHERE customer = '{words[8]}' AND product = '{words[-1]}'"


def analyst(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Run one right query and give its result."""
    if not state["trajectory"]:
        return vf.tool_call("query", sql=_sql(state["prompt"][-1]["content"]))
    rows = json.loads(messages[-1].content)
    value = rows[0][0] if rows else None
    return f"<answer>{'none' if value is None else value}</answer>"


def first_row(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Look at one order and give its number of units."""
    if not state["trajectory"]:
        return vf.tool_call("query", sql="SELECT units FROM orders LIMIT 1")
    return f"<answer>{json.loads(messages[-1].content)[0][0]}</answer>"


class ShopEnv(vf.StatefulToolEnv):
    """An environment with one database per rollout, which can be read only."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.query, args_to_skip=["db"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.execute(
            "CREATE TABLE orders (id INTEGER, customer, city, product, units INTEGER, price INTEGER, month INTEGER)"
        )
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)", _orders(state["info"]["orders"]))
        db.commit()
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
        state["db"] = db

    def query(self, sql: str, db: sqlite3.Connection) -> list[list[Any]]:
        """Run one SELECT statement and return at most 50 rows.

        Args:
            sql: a SELECT statement of SQLite
        """
        steps = 0

        def limit() -> bool:
            nonlocal steps
            steps += 1
            return steps > MAX_STEPS

        db.set_progress_handler(limit, 10_000)
        return [list(row) for row in db.execute(sql).fetchmany(MAX_ROWS)]

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "db": state["db"]}

    @vf.cleanup
    def close(self, state: vf.State) -> None:
        """Close the database."""
        if "db" in state:
            state["db"].close()


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        orders = _orders(f"{seed}:{index}")
        rng = random.Random(f"{seed}:{index}:question")
        question, answer = "", ""
        while not question or (answer == "none" and rng.random() < 0.6):
            question, answer = _question(orders, rng)
        rows.append({"question": question, "answer": answer, "info": {"orders": f"{seed}:{index}"}})
    return rows


def load_environment(num_train: int = 300, num_eval: int = 150, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions about orders; every question has its own database.

    Args:
        num_train, num_eval: Number of questions.
        seed: Random seed of the databases and questions.
        max_turns: Maximum model turns.
    """
    return ShopEnv(
        dataset=lambda: _rows(num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"analyst": analyst, "first_row": first_row},
        max_turns=max_turns,
    )
