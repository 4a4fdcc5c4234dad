"""Shop SQL: answer questions about a small shop with queries to its database."""

from __future__ import annotations

import random
import re
import sqlite3
from decimal import Decimal, InvalidOperation
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question about the shop. The database has the tables products(name, category, price, stock) and "
    "sales(id, customer, product, count); prices are in euros. Query it, then write the answer in tags, for example "
    "<answer>12.50</answer>. Separate several names with commas. If there are none, write <answer>none</answer>."
)
STOCK = {
    "tools": "rake spade trowel shears hoe dibber hose bucket".split(),
    "seeds": "carrot radish lettuce pea bean spinach beet leek".split(),
    "flowers": "tulip aster dahlia pansy iris lupin zinnia poppy".split(),
    "books": "pruning compost roses herbs ponds lawns soil bees".split(),
}
CUSTOMERS = "Anders Bea Colin Dora Edgar Flora Gina Henk".split()  # noqa: SIM905
MAX_ROWS, MAX_STEPS = 50, 200_000
TOLERANCE = Decimal("0.005")
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def make_tables(rng: random.Random) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the rows of both tables."""
    products = []
    for category, names in STOCK.items():
        for name in rng.sample(names, rng.randint(3, 6)):
            stock = 0 if rng.random() < 0.15 else rng.randint(1, 90)
            products.append([name, category, rng.randint(8, 400) * 5 / 100, stock])
    sales = []
    for number in range(1, rng.randint(30, 60)):
        sales.append([number, rng.choice(CUSTOMERS), rng.choice(products)[0], rng.randint(1, 9)])
    return products, sales


def ask(rng: random.Random, products: list[list[Any]], sales: list[list[Any]]) -> tuple[str, str, str]:
    """Return a question, its answer and the kind of the answer."""
    kind = rng.choice(("price", "stock", "bought", "revenue", "empty"))
    name, category, price, stock = rng.choice(products)
    if kind == "price":
        return f"What is the price of the product '{name}'?", f"{price:.2f}", "number"
    if kind == "stock":
        total = sum(product[3] for product in products if product[1] == category)
        return f"How many pieces of the category '{category}' are in stock in total?", str(total), "number"
    if kind == "bought":
        customer = rng.choice(CUSTOMERS)
        total = sum(sale[3] for sale in sales if sale[1] == customer)
        return f"How many pieces did {customer} buy in total, over all sales?", str(total), "number"
    if kind == "revenue":
        cents = {product[0]: round(product[2] * 100) for product in products}
        total = sum(cents[sale[2]] * sale[3] for sale in sales if sale[1] == (buyer := sales[0][1]))
        return f"How much did {buyer} pay for all sales together, in euros?", f"{total / 100:.2f}", "number"
    names = sorted(product[0] for product in products if product[1] == category and product[3] == 0)
    return f"Which products of the category '{category}' are out of stock?", ", ".join(names) or "none", "names"


def read_number(text: str) -> Decimal | None:
    """Return the number in a text, with or without a currency, or None."""
    text = re.sub(r"€|\beuros?\b|\bpieces\b|,(?=\d{3}\b)|\s", "", text.lower())
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def read_names(text: str) -> list[str]:
    return sorted(part.strip(" '\".").lower() for part in re.split(r",|\band\b", text) if part.strip())


def correct(completion: vf.Messages, answer: str, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 if the answer is right: the same number, or the same names in any order."""
    reply = parser.parse_answer(completion) if completion[-1].role == "assistant" else None
    if reply is None:
        return 0.0
    if info["kind"] == "number":
        number = read_number(reply)
        return float(number is not None and abs(number - Decimal(answer)) < TOLERANCE)
    return float(read_names(reply) == read_names(answer))


def analyst(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Ask one query, and answer with its result."""
    question = str(state["prompt"][-1]["content"])
    quoted = re.findall(r"'(\w+)'", question)
    if state["trajectory"]:
        values = [row.split(" | ")[0] for row in str(messages[-1].content).split("\n")[1:]]
        text = ", ".join(values) if values else "none"
        return f"<answer>{text}</answer>"
    if "price" in question:
        sql = f"SELECT price FROM products WHERE name = '{quoted[0]}'"
    elif "in stock in total" in question:
        sql = f"SELECT SUM(stock) FROM products WHERE category = '{quoted[0]}'"
    elif "out of stock" in question:
        sql = f"SELECT name FROM products WHERE category = '{quoted[0]}' AND stock = 0"
    else:
        customer = question.split(" did ")[1].split()[0]
        column = "SUM(count)" if "pieces" in question else "ROUND(SUM(count * price), 2)"
        sql = f"SELECT COALESCE({column}, 0) FROM sales JOIN products ON product = name WHERE customer = '{customer}'"
    return vf.tool_call("query", sql=sql)


def no_query(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess without a query."""
    return "<answer>none</answer>" if "Which" in str(messages[-1].content) else f"<answer>{rng.randint(1, 40)}</answer>"


class ShopEnv(vf.StatefulToolEnv):
    """An environment with a database for each rollout, which can only be read."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_tool(self.query, args_to_skip=["db"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.execute("CREATE TABLE products (name TEXT, category TEXT, price REAL, stock INTEGER)")
        db.execute("CREATE TABLE sales (id INTEGER, customer TEXT, product TEXT, count INTEGER)")
        db.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", state["info"]["products"])
        db.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", state["info"]["sales"])
        db.commit()
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        state["db"] = db

    def query(self, sql: str, db: sqlite3.Connection) -> str:
        """Run one SELECT statement of SQLite and return its rows.

        Args:
            sql: the statement
        """
        steps = iter(range(MAX_STEPS // 1000))
        db.set_progress_handler(lambda: next(steps, None) is None, 1000)
        cursor = db.execute(sql)
        found = cursor.fetchmany(MAX_ROWS)
        head = " | ".join(column[0] for column in cursor.description or ())
        return "\n".join([head, *(" | ".join(map(str, row)) for row in found)])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "db": state["db"]}

    @vf.cleanup
    def close(self, state: vf.State) -> None:
        """Close the database."""
        if "db" in state:
            state["db"].close()


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a question about a new shop."""
    products, sales = make_tables(rng)
    question, answer, kind = ask(rng, products, sales)
    return {"question": question, "answer": answer, "info": {"kind": kind, "products": products, "sales": sales}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions about shops; each question has its own database.

    Args:
        num_examples: Number of questions for training, and for evaluation.
        seed: Random seed of the shops.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    return ShopEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"analyst": analyst, "no_query": no_query},
        max_turns=max_turns,
    )
