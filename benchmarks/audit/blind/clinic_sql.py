"""Text-to-SQL over the database of a small clinic: one question, one SELECT statement."""

import random
import re
import sqlite3
import zlib
from collections import Counter

import rove as vf

SCHEMA = """
CREATE TABLE doctor (id INTEGER PRIMARY KEY, name TEXT, specialty TEXT);
CREATE TABLE patient (id INTEGER PRIMARY KEY, name TEXT, born INTEGER, town TEXT);
CREATE TABLE visit (id INTEGER PRIMARY KEY, patient_id INTEGER, doctor_id INTEGER, month TEXT, minutes INTEGER, fee INTEGER);
"""
SYSTEM = f"You write SQLite queries for this schema:\n{SCHEMA}\nReply with one SELECT statement in a ```sql block."
DOCTORS = [("Kern", "eyes"), ("Oduya", "skin"), ("Brandt", "heart"), ("Salis", "ears"), ("Vico", "bones")]
FIRST = "Ana Bert Cleo Dag Eli Fee Gil Hana Ivo Jo Kai Lea Mats Nell Ole Pia".split()
LAST = "Abt Beck Cole Diaz Esch Frey Gantz Holt Ito Jung".split()
TOWNS = ["Arlen", "Brook", "Cotter", "Dunmere", "Estwick"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun"]
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def build(seed):
    """Return a fresh in-memory database."""
    rng = random.Random(f"clinic:{seed}")
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO doctor VALUES (?, ?, ?)", [(i, *d) for i, d in enumerate(DOCTORS, 1)])
    names = rng.sample([f"{f} {s}" for f in FIRST for s in LAST], 24)
    db.executemany(
        "INSERT INTO patient VALUES (?, ?, ?, ?)",
        [(i, name, rng.randint(1935, 2012), rng.choice(TOWNS)) for i, name in enumerate(names, 1)],
    )
    db.executemany(
        "INSERT INTO visit VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                i,
                rng.randint(1, 24),
                rng.randint(1, 5),
                rng.choice(MONTHS),
                rng.choice([10, 15, 20, 30, 45]),
                rng.randrange(30, 200, 5),
            )
            for i in range(1, 46)
        ],
    )
    return db


def run(seed, sql):
    """Return the rows of a query as a multiset, or None if it fails."""
    db = build(seed)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
    db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    ticks = iter(range(400))
    db.set_progress_handler(lambda: next(ticks, None) is None, 1000)
    try:
        return Counter(db.execute(sql).fetchmany(500))
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        db.close()


def extract(text):
    blocks = re.findall(r"```(?:sql)?\s*(.*?)```", text or "", re.S)
    return (blocks[-1] if blocks else text or "").strip().rstrip(";")


def executes(completion, info):
    """1 if the statement runs and is a SELECT."""
    sql = extract(completion[-1].content)
    return float(sql.lower().startswith("select") and run(info["db"], sql) is not None)


def same_result(completion, answer, info):
    """1 if the statement returns the same rows as the reference query, in any order."""
    sql = extract(completion[-1].content)
    if not sql.lower().startswith("select"):
        return 0.0
    got = run(info["db"], sql)
    return float(got is not None and got == run(info["db"], answer))


def question(rng):
    doctor, month, town = rng.choice(DOCTORS)[0], rng.choice(MONTHS), rng.choice(TOWNS)
    year, fee = rng.randrange(1940, 2010), rng.randrange(60, 200, 5)
    join = "FROM visit v JOIN patient p ON p.id = v.patient_id JOIN doctor d ON d.id = v.doctor_id"
    return rng.choice(
        [
            (
                f"Which patients from {town} saw Dr. {doctor} in {month}? List each name once.",
                f"SELECT DISTINCT p.name {join} WHERE p.town = '{town}' AND d.name = '{doctor}' AND v.month = '{month}'",
            ),
            (
                f"List the ids of visits in {month} to Dr. {doctor} that cost more than {fee}.",
                f"SELECT v.id {join} WHERE v.month = '{month}' AND d.name = '{doctor}' AND v.fee > {fee}",
            ),
            (
                f"Which patients born after {year} from {town} had a visit of 45 minutes? List each name once.",
                f"SELECT DISTINCT p.name {join} WHERE p.born > {year} AND p.town = '{town}' AND v.minutes = 45",
            ),
            (
                f"Name and birth year of the patients from {town} who were born before {year}?",
                f"SELECT name, born FROM patient WHERE town = '{town}' AND born < {year}",
            ),
        ]
    )


def rows(n, split):
    out, rng = [], random.Random(split)
    while len(out) < n:
        text, sql = question(rng)
        if (zlib.crc32(text.encode()) % 4 == 0) == (split == "eval"):
            out.append({"question": text, "answer": sql, "info": {"db": f"{split}{len(out) % 20}"}})
    return out


def load_environment(num_train: int = 400, num_eval: int = 150) -> vf.Environment:
    rubric = vf.Rubric([same_result], [1.0])
    rubric.add_metric(executes)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_train, "train"),
        eval_dataset=lambda: rows(num_eval, "eval"),
        system_prompt=SYSTEM,
        rubric=rubric,
    )
