"""Three small databases (a shop, a library and an airline) whose rows are generated from a seed."""

from __future__ import annotations

import datetime
import functools
import random
import sqlite3
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

SCHEMAS = {
    "shop": """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, joined DATE);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers(id), ordered DATE,
    status TEXT CHECK (status IN ('shipped', 'open', 'returned', 'cancelled')));
CREATE TABLE order_items (order_id INTEGER REFERENCES orders(id), product_id INTEGER REFERENCES products(id), quantity INTEGER);
""",
    "library": """
CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER REFERENCES authors(id), genre TEXT, year INTEGER,
    copies INTEGER);
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT, town TEXT, joined DATE);
CREATE TABLE loans (id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES books(id), member_id INTEGER REFERENCES members(id),
    taken DATE, returned DATE /* NULL: not yet */);
""",
    "airline": """
CREATE TABLE airports (code TEXT PRIMARY KEY, city TEXT, country TEXT);
CREATE TABLE aircraft (id INTEGER PRIMARY KEY, model TEXT, seats INTEGER);
CREATE TABLE flights (id INTEGER PRIMARY KEY, number TEXT, origin TEXT REFERENCES airports(code),
    destination TEXT REFERENCES airports(code), day DATE, minutes INTEGER, aircraft_id INTEGER REFERENCES aircraft(id));
CREATE TABLE bookings (id INTEGER PRIMARY KEY, flight_id INTEGER REFERENCES flights(id), passenger TEXT,
    class TEXT CHECK (class IN ('economy', 'business')), paid REAL);
""",
}
GAPS = {
    "shop": {
        "city": "SELECT DISTINCT city FROM customers ORDER BY 1",
        "category": "SELECT DISTINCT category FROM products ORDER BY 1",
        "customer": "SELECT name FROM customers WHERE id IN (SELECT customer_id FROM orders) ORDER BY 1",
        "product": "SELECT name FROM products WHERE id IN (SELECT product_id FROM order_items) ORDER BY 1",
        "price": "SELECT 20 UNION SELECT 50 UNION SELECT 80 UNION SELECT 120",
        "year": "SELECT 2023 UNION SELECT 2024",
        "status": "SELECT DISTINCT status FROM orders ORDER BY 1",
        "n": "SELECT 3 UNION SELECT 4 UNION SELECT 5",
    },
    "library": {
        "genre": "SELECT DISTINCT genre FROM books ORDER BY 1",
        "town": "SELECT DISTINCT town FROM members ORDER BY 1",
        "author": "SELECT name FROM authors WHERE id IN (SELECT author_id FROM books) ORDER BY 1",
        "member": "SELECT name FROM members WHERE id IN (SELECT member_id FROM loans) ORDER BY 1",
        "title": "SELECT title FROM books ORDER BY 1",
        "country": "SELECT DISTINCT country FROM authors ORDER BY 1",
        "year": "SELECT 1950 UNION SELECT 1970 UNION SELECT 1990 UNION SELECT 2010",
        "n": "SELECT 3 UNION SELECT 4 UNION SELECT 5",
    },
    "airline": {
        "code": "SELECT DISTINCT origin FROM flights ORDER BY 1",
        "city": "SELECT DISTINCT city FROM airports WHERE code IN (SELECT origin FROM flights) ORDER BY 1",
        "country": "SELECT DISTINCT country FROM airports ORDER BY 1",
        "model": "SELECT model FROM aircraft ORDER BY 1",
        "number": "SELECT number FROM flights WHERE id IN (SELECT flight_id FROM bookings) ORDER BY 1",
        "class": "SELECT DISTINCT class FROM bookings ORDER BY 1",
        "n": "SELECT 3 UNION SELECT 4 UNION SELECT 5",
    },
}
"""Queries for the values that can fill the gaps of questions."""
FIRST, LAST = (
    names.split()
    for names in (
        "Ada Ben Cleo Dan Eva Finn Gus Hana Ivan Jane Kim Leo Mia Nora Otto Pia Rex Sara Tom Uma Vera Will Yara Zoe",
        "Abbot Brook Carver Dell Eaton Frost Grant Hale Irwin Judd Kerr Lang Marsh North Orr Price Quill Rhodes",
    )
)
CITIES = ["Ashford", "Brinley", "Corwell", "Dunmore", "Eastby", "Fenton", "Garside", "Holton"]
COUNTRIES = ["Arland", "Belmark", "Corvia", "Delmora", "Estmar", "Forland"]
GOODS = {
    "kitchen": ["kettle", "pan", "toaster", "knife", "bowl", "jug"],
    "garden": ["spade", "rake", "hose", "bench", "lantern", "wheelbarrow"],
    "office": ["desk", "chair", "lamp", "stapler", "notebook", "shelf"],
    "sports": ["racket", "ball", "helmet", "rope", "tent", "mat"],
    "toys": ["kite", "puzzle", "robot", "drum", "train", "puppet"],
}
COLORS = ["red", "blue", "green", "black", "white", "yellow"]
GENRES = ["crime", "fantasy", "history", "poetry", "romance", "science", "travel"]
TITLES = (
    ["Broken", "Distant", "Golden", "Hidden", "Last", "Little", "Lost", "Quiet", "Second", "Silent", "Slow", "Wild"],
    ["Bridge", "Coast", "Door", "Garden", "House", "Island", "Letter", "Mirror", "Night", "River", "Summer", "Train"],
)
MODELS = ["Avis 100", "Avis 200", "Boreal 7", "Boreal 9", "Condor S", "Condor XL", "Dart 3", "Egret 40"]

Rows = dict[str, list[tuple[Any, ...]]]


def _names(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{first} {last}" for first, last in product(FIRST, LAST)], count)


def _day(rng: random.Random, first: int = 0, last: int = 730) -> str:
    """Return a random date that is `first` to `last` days after January 1, 2023."""
    return str(datetime.date(2023, 1, 1) + datetime.timedelta(rng.randint(first, last)))


def _prices(rng: random.Random, count: int, max_price: int) -> list[float]:
    return [cents / 100 for cents in rng.sample(range(300, 100 * max_price), count)]


def _shop(rng: random.Random) -> Rows:
    kinds: list[tuple[str, str]] = []
    for category, goods in GOODS.items():
        kinds += [(f"{color} {good}", category) for good, color in product(goods, COLORS)]
    products = rng.sample(kinds, 40)
    buyers = rng.sample(range(1, 61), 54)  # the others never order anything
    sold = rng.sample(range(1, 41), 37)
    status = ["shipped"] * 6 + ["open", "returned", "cancelled"]
    return {
        "customers": [(i, name, rng.choice(CITIES), _day(rng)) for i, name in enumerate(_names(rng, 60), 1)],
        "products": [(i, *kind, price) for i, (kind, price) in enumerate(zip(products, _prices(rng, 40, 200)), 1)],
        "orders": [(i, rng.choice(buyers), _day(rng), rng.choice(status)) for i in range(1, 181)],
        "order_items": [
            (order, product, rng.randint(1, 6))
            for order in range(1, 181)
            for product in rng.sample(sold, rng.randint(1, 4))
        ],
    }


def _library(rng: random.Random) -> Rows:
    titles = rng.sample([f"The {first} {second}" for first, second in product(*TITLES)], 90)
    readers, lent = rng.sample(range(1, 56), 50), rng.sample(range(1, 91), 84)
    taken = [rng.randint(0, 700) for _ in range(260)]
    back = [day + rng.randint(2, 60) if rng.random() < 0.88 else None for day in taken]
    return {
        "authors": [(i, name, rng.choice(COUNTRIES)) for i, name in enumerate(_names(rng, 28), 1)],
        "books": [
            (i, title, rng.randint(1, 28), rng.choice(GENRES), rng.randint(1920, 2022), rng.randint(1, 6))
            for i, title in enumerate(titles, 1)
        ],
        "members": [(i, name, rng.choice(CITIES), _day(rng)) for i, name in enumerate(_names(rng, 55), 1)],
        "loans": [
            (
                i,
                rng.choice(lent),
                rng.choice(readers),
                _day(rng, out, out),
                None if end is None else _day(rng, end, end),
            )
            for i, (out, end) in enumerate(zip(taken, back), 1)
        ],
    }


def _airline(rng: random.Random) -> Rows:
    codes = [city[:3].upper() for city in CITIES]
    routes = {pair: rng.randint(45, 400) for pair in rng.sample(list(permutations(codes, 2)), 24)}
    numbers = rng.sample(range(100, 1000), 150)
    flown = rng.sample(range(1, 151), 140)
    passengers = _names(rng, 120)
    flights = [
        (i, f"RV{number}", *route, _day(rng, 0, 120), routes[route] + rng.randint(-9, 9), rng.randint(1, len(MODELS)))
        for i, (number, route) in enumerate(((number, rng.choice(list(routes))) for number in numbers), 1)
    ]
    classes = [rng.choice(["economy"] * 4 + ["business"]) for _ in range(450)]
    return {
        "airports": [(code, city, rng.choice(COUNTRIES)) for code, city in zip(codes, CITIES)],
        "aircraft": [
            (i, model, seats) for i, (model, seats) in enumerate(zip(MODELS, rng.sample(range(20, 300, 4), 8)), 1)
        ],
        "flights": flights,
        "bookings": [
            (
                i,
                rng.choice(flown),
                rng.choice(passengers),
                kind,
                round(rng.uniform(40, 400) * (1 + 2 * (kind == "business")), 2),
            )
            for i, kind in enumerate(classes, 1)
        ],
    }


FILL: dict[str, Callable[[random.Random], Rows]] = {"shop": _shop, "library": _library, "airline": _airline}


@functools.lru_cache(maxsize=256)
def image(schema: str, seed: str) -> bytes:
    """Return a database as the bytes of its file; the same seed gives the same database."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMAS[schema])
        for table, rows in FILL[schema](random.Random(f"{schema}:{seed}")).items():
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        db.commit()
        return db.serialize()
    finally:
        db.close()
