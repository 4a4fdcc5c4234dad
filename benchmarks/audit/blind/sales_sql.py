"""Sales SQL: answer questions about a shop's database with a SQL query."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import rove as vf

SCHEMA = """\
customers(id INTEGER, name TEXT, city TEXT)
products(id INTEGER, title TEXT, category TEXT, price REAL)
orders(id INTEGER, customer_id INTEGER, product_id INTEGER, quantity INTEGER, day TEXT)"""
SYSTEM_PROMPT = (
    "You answer questions about a shop with SQLite. The tables are:\n" + SCHEMA + "\n"
    "You can try queries with the tool `query`. When you are done, reply without a call and put the final query into "
    "<sql></sql>. Its result is compared with the expected result; the order of the rows and duplicates do not matter."
)
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
MAX_TICKS = 2000
CITIES = ["Lyon", "Porto", "Graz", "Bergen", "Gdansk", "Leuven", "Turin", "Vigo"]
NAMES = "Ana Bela Carl Dora Egon Fritz Gina Hugo Ines Jan Klara Leo Mona Nils Olga Paul Quinn Rosa Sven Tara Udo Vera".split()
CATEGORIES = {
    "garden": ["rake", "hose", "spade", "trowel"],
    "kitchen": ["kettle", "pan", "whisk", "mug"],
    "office": ["stapler", "lamp", "folder", "desk"],
    "sport": ["ball", "racket", "rope", "mat"],
}


def build_database(path: str = ":memory:") -> sqlite3.Connection:
    """Create the shop's database."""
    rng = random.Random("shop")
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.executescript("".join(f"CREATE TABLE {line};" for line in SCHEMA.splitlines()))
    for index, name in enumerate(NAMES, start=1):
        connection.execute("INSERT INTO customers VALUES (?, ?, ?)", (index, name, rng.choice(CITIES)))
    titles = [(title, category) for category, names in CATEGORIES.items() for title in names]
    for index, (title, category) in enumerate(titles, start=1):
        connection.execute(
            "INSERT INTO products VALUES (?, ?, ?, ?)", (index, title, category, rng.randint(30, 900) / 10)
        )
    for index in range(1, 49):
        day = f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        values = (index, rng.randint(1, len(NAMES)), rng.randint(1, len(titles)), rng.randint(1, 9), day)
        connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", values)
    connection.commit()
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    connection.set_authorizer(lambda action, *names: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    return connection


def fetch(connection: sqlite3.Connection, sql: str, limit: int) -> list[tuple[Any, ...]]:
    """Run one statement and return its first rows; give up on statements that take very long."""
    ticks = iter(range(MAX_TICKS))
    connection.set_progress_handler(lambda: next(ticks, None) is None, 1000)
    return connection.execute(sql).fetchmany(limit)


def run_query(connection: sqlite3.Connection, sql: str, limit: int = 200) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    try:
        return fetch(connection, sql, limit)
    except (sqlite3.Error, sqlite3.Warning):
        return []


def buyers(rng: random.Random) -> tuple[str, str]:
    title = rng.choice([title for titles in CATEGORIES.values() for title in titles])
    city = rng.choice(CITIES)
    return (
        f"What are the names of the customers from {city} who ordered the product {title}?",
        "SELECT DISTINCT c.name FROM customers c JOIN orders o ON o.customer_id = c.id JOIN products p ON p.id = o.product_id "
        f"WHERE c.city = '{city}' AND p.title = '{title}'",
    )


def monthly(rng: random.Random) -> tuple[str, str]:
    category, month, quantity = rng.choice(list(CATEGORIES)), rng.randint(1, 12), rng.randint(3, 7)
    return (
        f"Which orders (id) from month {month} of 2024 contain more than {quantity} pieces of a product of the category {category}?",
        "SELECT o.id FROM orders o JOIN products p ON p.id = o.product_id "
        f"WHERE p.category = '{category}' AND o.quantity > {quantity} AND o.day LIKE '2024-{month:02}-%'",
    )


def expensive(rng: random.Random) -> tuple[str, str]:
    name, price = rng.choice(NAMES), rng.randint(30, 75)
    return (
        f"Which products (title) that cost more than {price} did {name} order?",
        "SELECT DISTINCT p.title FROM products p JOIN orders o ON o.product_id = p.id JOIN customers c ON c.id = o.customer_id "
        f"WHERE c.name = '{name}' AND p.price > {price}",
    )


KINDS = [buyers, buyers, monthly, expensive]


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        question, sql = rng.choice(KINDS)(rng)
        found.setdefault(question, sql)
    return [{"question": question, "answer": sql} for question, sql in found.items()]


class SalesEnv(vf.ToolEnv):
    """An environment with a read-only database and a tool that queries it."""

    def __init__(self, **kwargs: Any):
        self.connection = build_database()
        super().__init__(tools=[self.query], max_threads=0, **kwargs)

    def query(self, sql: str) -> str:
        """Run a SQL query and return up to 20 rows.

        Args:
            sql: one SELECT statement
        """
        try:
            rows = fetch(self.connection, sql, 20)
        except (sqlite3.Error, sqlite3.Warning) as error:
            return f"error: {error}"
        return "\n".join(map(str, rows)) or "no rows"

    def same_result(self, completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
        """1 if the final query has the same result as the reference query."""
        last = completion[-1]
        sql = parser.parse(last.content or "", last=True).sql if last.role == "assistant" else None
        rows, expected = run_query(self.connection, sql or ""), run_query(self.connection, answer)
        return float(set(rows) == set(expected))


def analyst(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Tries the right query, then submits it."""
    if not state["trajectory"]:
        return vf.tool_call("query", sql=state["answer"])
    return f"<sql>{state['answer']}</sql>"


def intern(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Submits a query that forgets the last condition."""
    return f"<sql>{state['answer'].rpartition(' AND ')[0]}</sql>"


def load_environment(
    num_examples: int = 240, num_eval_examples: int = 80, seed: int = 0, max_turns: int = 6
) -> vf.Environment:
    """Return an environment with questions about a shop's database.

    Args:
        num_examples: Questions for training.
        num_eval_examples: Questions for evaluation.
        seed: Random seed of the questions.
        max_turns: Maximum model turns.
    """
    rows = _rows(num_examples + num_eval_examples, seed)
    env = SalesEnv(
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=vf.XMLParser(["sql"], answer_field="sql"),
        policies={"analyst": analyst, "intern": intern},
        max_turns=max_turns,
    )
    env.rubric.add_reward_func(env.same_result)
    return env
