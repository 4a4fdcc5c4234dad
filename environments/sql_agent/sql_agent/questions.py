"""Questions of five levels, each with the query that answers it."""

from __future__ import annotations

import functools
import random
import re
from contextlib import closing
from typing import Any, NamedTuple

from .databases import GAPS, image
from .queries import as_text, connect, in_lines, run

QUESTIONS = {
    "shop": """
1 How many customers live in {city}?
  SELECT COUNT(*) FROM customers WHERE city = '{city}'
1 How many products cost more than {price}?
  SELECT COUNT(*) FROM products WHERE price > {price}
1 Which products are in the category {category}? Give their names.
  SELECT name FROM products WHERE category = '{category}'
1 How many orders have the status "{status}"?
  SELECT COUNT(*) FROM orders WHERE status = '{status}'
2 What is the average price of the products in the category {category}, rounded to two decimals?
  SELECT ROUND(AVG(price), 2) FROM products WHERE category = '{category}'
2 In which cities do customers live, and how many in each? Give city and number.
  SELECT city, COUNT(*) FROM customers GROUP BY city
2 Which {n} products are the most expensive? Give name and price, the most expensive first.
  SELECT name, price FROM products ORDER BY price DESC LIMIT {n}
2 How many orders were placed in {year}?
  SELECT COUNT(*) FROM orders WHERE strftime('%Y', ordered) = '{year}'
3 How many orders has {customer} placed?
  SELECT COUNT(*) FROM orders JOIN customers ON customers.id = customer_id WHERE name = '{customer}'
3 Which products has {customer} ordered? Give each name once.
  SELECT DISTINCT p.name FROM customers c JOIN orders o ON o.customer_id = c.id
  JOIN order_items i ON i.order_id = o.id
  JOIN products p ON p.id = i.product_id WHERE c.name = '{customer}'
3 How many pieces of the product "{product}" have been ordered?
  SELECT SUM(quantity) FROM order_items JOIN products ON products.id = product_id WHERE name = '{product}'
4 How many pieces have been ordered of each category? Give category and number.
  SELECT category, SUM(quantity) FROM order_items JOIN products ON products.id = product_id GROUP BY category
4 What are the orders of {year} with the status "shipped" worth in all (quantity times price), rounded to two decimals?
  SELECT ROUND(SUM(quantity * price), 2) FROM orders o JOIN order_items i ON i.order_id = o.id
  JOIN products p ON p.id = i.product_id
  WHERE status = 'shipped' AND strftime('%Y', ordered) = '{year}'
4 Which {n} customers have spent most (quantity times price)? Give name and sum, rounded to two decimals, the highest first.
  SELECT c.name, ROUND(SUM(quantity * price), 2) FROM customers c JOIN orders o ON o.customer_id = c.id
  JOIN order_items i ON i.order_id = o.id JOIN products p ON p.id = i.product_id
  GROUP BY c.id ORDER BY 2 DESC LIMIT {n}
5 Which customers have never placed an order? Give their names.
  SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)
5 Which products have never been ordered? Give their names.
  SELECT name FROM products WHERE id NOT IN (SELECT product_id FROM order_items)
5 In which month of {year} were most orders placed? Give the month as YYYY-MM, and the number of orders.
  SELECT strftime('%Y-%m', ordered), COUNT(*) FROM orders WHERE strftime('%Y', ordered) = '{year}'
  GROUP BY 1 ORDER BY 2 DESC LIMIT 1
5 Which is the most expensive product of each category? Give category, name and price.
  SELECT category, name, price FROM products p WHERE price = (SELECT MAX(price) FROM products
  WHERE category = p.category)
5 What percentage of the orders of {year} was returned, rounded to two decimals?
  SELECT ROUND(100.0 * SUM(status = 'returned') / COUNT(*), 2) FROM orders WHERE strftime('%Y', ordered) = '{year}'
""",
    "library": """
1 How many books were published after {year}?
  SELECT COUNT(*) FROM books WHERE year > {year}
1 Which books are of the genre {genre}? Give their titles.
  SELECT title FROM books WHERE genre = '{genre}'
1 How many members live in {town}?
  SELECT COUNT(*) FROM members WHERE town = '{town}'
1 Which authors come from {country}? Give their names.
  SELECT name FROM authors WHERE country = '{country}'
2 Which {n} books are the oldest? Give title and year, the oldest first.
  SELECT title, year FROM books ORDER BY year LIMIT {n}
2 How many books are there of each genre? Give genre and number.
  SELECT genre, COUNT(*) FROM books GROUP BY genre
2 How many copies does the library have of all {genre} books together?
  SELECT SUM(copies) FROM books WHERE genre = '{genre}'
3 Which books did {author} write? Give their titles.
  SELECT title FROM books JOIN authors ON authors.id = author_id WHERE name = '{author}'
3 How many times has {member} borrowed a book?
  SELECT COUNT(*) FROM loans JOIN members ON members.id = member_id WHERE name = '{member}'
3 From which country is the author of "{title}"?
  SELECT country FROM books JOIN authors ON authors.id = author_id WHERE title = '{title}'
3 How many times has "{title}" been borrowed?
  SELECT COUNT(*) FROM loans JOIN books ON books.id = book_id WHERE title = '{title}'
4 How many loans were there of books by authors from {country}?
  SELECT COUNT(*) FROM loans JOIN books ON books.id = book_id JOIN authors ON authors.id = author_id
  WHERE country = '{country}'
4 Which books does {member} still have, not yet returned? Give their titles.
  SELECT title FROM loans JOIN books ON books.id = book_id JOIN members ON members.id = member_id
  WHERE name = '{member}' AND returned IS NULL
4 Which {n} genres are borrowed most? Give genre and number of loans, the most borrowed first.
  SELECT genre, COUNT(*) FROM loans JOIN books ON books.id = book_id GROUP BY genre ORDER BY 2 DESC LIMIT {n}
5 Which members have never borrowed a book? Give their names.
  SELECT name FROM members WHERE id NOT IN (SELECT member_id FROM loans)
5 Which books have never been borrowed? Give their titles.
  SELECT title FROM books WHERE id NOT IN (SELECT book_id FROM loans)
5 How many days did a finished loan of a {genre} book last on average, rounded to two decimals?
  SELECT ROUND(AVG(julianday(returned) - julianday(taken)), 2) FROM loans JOIN books ON books.id = book_id
  WHERE genre = '{genre}' AND returned IS NOT NULL
5 Which authors have written at least {n} of the books? Give name and number of books.
  SELECT name, COUNT(*) FROM books JOIN authors ON authors.id = author_id GROUP BY authors.id HAVING COUNT(*) >= {n}
5 Which members have borrowed at least {n} books by authors from {country}? Give their names. Every loan counts.
  SELECT m.name FROM members m JOIN loans ON m.id = member_id JOIN books ON books.id = book_id
  JOIN authors ON authors.id = author_id
  WHERE country = '{country}' GROUP BY m.id HAVING COUNT(*) >= {n}
""",
    "airline": """
1 How many flights leave from the airport {code}?
  SELECT COUNT(*) FROM flights WHERE origin = '{code}'
1 How many seats does the aircraft model {model} have?
  SELECT seats FROM aircraft WHERE model = '{model}'
1 Which airports are in {country}? Give their codes.
  SELECT code FROM airports WHERE country = '{country}'
1 How many bookings are there in {class} class?
  SELECT COUNT(*) FROM bookings WHERE class = '{class}'
2 How many minutes does a flight from {code} take on average, rounded to two decimals?
  SELECT ROUND(AVG(minutes), 2) FROM flights WHERE origin = '{code}'
2 Which {n} flights take longest? Give flight number and minutes, the longest first.
  SELECT number, minutes FROM flights ORDER BY minutes DESC LIMIT {n}
2 How many flights leave from each airport? Give its code and the number; leave out airports without any.
  SELECT origin, COUNT(*) FROM flights GROUP BY origin
2 What was paid on average for a booking in {class} class, rounded to two decimals?
  SELECT ROUND(AVG(paid), 2) FROM bookings WHERE class = '{class}'
3 Which cities can be reached from {city} without changing planes? Give each once.
  SELECT DISTINCT b.city FROM flights JOIN airports a ON a.code = origin JOIN airports b ON b.code = destination
  WHERE a.city = '{city}'
3 How many bookings are there for flight {number}?
  SELECT COUNT(*) FROM bookings JOIN flights ON flights.id = flight_id WHERE number = '{number}'
3 To which city does flight {number} go, and with which aircraft model? Give city and model.
  SELECT city, model FROM flights JOIN airports ON code = destination JOIN aircraft ON aircraft.id = aircraft_id
  WHERE number = '{number}'
4 How much was paid for all bookings on flights from {city}, rounded to two decimals?
  SELECT ROUND(SUM(paid), 2) FROM bookings JOIN flights ON flights.id = flight_id JOIN airports ON code = origin
  WHERE city = '{city}'
4 Which {n} flights have brought in most money? Give flight number and sum, rounded to two decimals, the highest first.
  SELECT number, ROUND(SUM(paid), 2) FROM bookings JOIN flights ON flights.id = flight_id
  GROUP BY flights.id ORDER BY 2 DESC LIMIT {n}
4 How many bookings of each class are there on flights with the model {model}? Give class and number.
  SELECT class, COUNT(*) FROM bookings JOIN flights ON flights.id = flight_id
  JOIN aircraft ON aircraft.id = aircraft_id
  WHERE model = '{model}' GROUP BY class
5 Which flights have no booking? Give their numbers.
  SELECT number FROM flights WHERE id NOT IN (SELECT flight_id FROM bookings)
5 On which day did most flights leave from {city}? Give the day and the number of flights.
  SELECT day, COUNT(*) FROM flights JOIN airports ON code = origin WHERE city = '{city}'
  GROUP BY day ORDER BY 2 DESC LIMIT 1
5 Between which pairs of airports are there flights in both directions? Give both codes of each, in alphabetical order.
  SELECT DISTINCT a.origin, a.destination FROM flights a
  JOIN flights b ON a.origin = b.destination AND a.destination = b.origin
  WHERE a.origin < a.destination
5 Which passengers have at least {n} bookings on flights from {country}? Give name and number of bookings.
  SELECT passenger, COUNT(*) FROM bookings JOIN flights ON flights.id = flight_id JOIN airports ON code = origin
  WHERE country = '{country}' GROUP BY passenger HAVING COUNT(*) >= {n}
""",
}
MOST_ROWS = 20
"""Maximum rows of an answer."""
DATABASES_PER_SCHEMA = 20
"""Number of databases with each schema for the questions of one dataset."""
MIN_LEVEL, MAX_LEVEL = 1, 5


class Template(NamedTuple):
    """A question template with gaps, and the query template with the same gaps."""

    schema: str
    level: int
    text: str
    sql: str


@functools.cache
def templates() -> list[Template]:
    """Return all question templates."""
    parsed: list[Template] = []
    for schema, text in QUESTIONS.items():
        for part in re.split(r"\n(?=\d )", text.strip()):
            question, sql = part.split("\n", 1)
            parsed.append(Template(schema, int(question[0]), question[2:], " ".join(sql.split())))
    return parsed


def _answer(db: Any, sql: str) -> str | None:
    """Return the result of a query as an answer; None if it is empty, too long, or not the only right one."""
    one_more = re.sub(r"LIMIT (\d+)$", lambda limit: f"LIMIT {int(limit[1]) + 1}", sql)
    _, rows = run(db, one_more, MOST_ROWS)
    if one_more != sql and len({row[-1] for row in rows}) < len(rows):
        return None
    _, rows = run(db, sql, MOST_ROWS)
    has_null = any(None in row for row in rows)
    return in_lines(rows) if 0 < len(rows) <= MOST_ROWS and not has_null else None


def _question(rng: random.Random, seed: str, levels: range) -> dict[str, Any] | None:
    level = rng.choice(levels)
    template = rng.choice([template for template in templates() if template.level == level])
    database = f"{seed}:{rng.randrange(DATABASES_PER_SCHEMA)}"
    with closing(connect(image(template.schema, database))) as db:
        possible_values = {gap: run(db, GAPS[template.schema][gap], 1000)[1] for gap in gaps_of(template.text)}
        gaps = {gap: as_text(rng.choice(values)[0]) for gap, values in possible_values.items()}
        sql = template.sql.format_map(gaps)
        answer = _answer(db, sql)
    info = {"schema": template.schema, "database": database, "level": level, "sql": sql}
    return None if answer is None else {"question": template.text.format_map(gaps), "answer": answer, "info": info}


def make_rows(count: int, seed: str, levels: range) -> list[dict[str, Any]]:
    """Return `count` questions of the given levels; a question repeats only if no new one is found.

    `seed` determines the questions and the databases.
    """
    rng, used = random.Random(seed), set()
    rows: list[dict[str, Any]] = []
    tries = 0
    while len(rows) < count:
        row, tries = _question(rng, seed, levels), tries + 1
        key = row and (row["question"], row["info"]["database"])
        if row and (key not in used or tries > 100):
            used.add(key)
            rows.append(row)
            tries = 0
    return rows


def gaps_of(text: str) -> list[str]:
    """Return the names of the gaps in a text."""
    return sorted(set(re.findall(r"{(\w+)}", text)))
