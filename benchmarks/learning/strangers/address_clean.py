"""Address clean: write an untidy address in the standard form. The addresses are in address_clean.jsonl."""

import json
import random
import zlib
from pathlib import Path

import rove as vf

FILE = Path(__file__).with_name("address_clean.jsonl")


def read(held_out):
    with FILE.open(encoding="utf-8") as file:
        made = [json.loads(line) for line in file]
    made = [{"question": row["raw"], "answer": row["clean"]} for row in made]
    return [row for row in made if (zlib.crc32(row["answer"].encode()) % 4 == 0) == held_out]


def rows(count, seed, held_out):
    """Return at most `count` rows of the file; a quarter of the addresses is only for evaluation."""
    found = read(held_out)
    return random.Random(seed).sample(found, min(count, len(found)))


def parts(text):
    """Split "12 Oak Street, Leeds" into its four parts."""
    street, _, city = text.partition(", ")
    return [*street.split(" "), city]


def correct(completion, answer, parser):
    """1 for the right address, otherwise a tenth for each right part."""
    said, right = parts(parser.parse_answer(completion) or ""), parts(answer)
    if said == right:
        return 1.0
    return 0.1 * sum(a == b for a, b in zip(said, right)) if len(said) == len(right) else 0.0


def secretary(messages, state, rng):
    """Always right."""
    return f"<address>{state['answer']}</address>"


def mixer(messages, state, rng):
    """The parts of random other addresses."""
    columns = zip(*(parts(row["answer"]) for row in rng.sample(read(False), 4)))
    number, street, kind, city = (rng.choice(column) for column in columns)
    return f"<address>{number} {street} {kind}, {city}</address>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with the addresses of the file."""
    parser = vf.XMLParser(["address"], answer_field="address")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Write the address like this: <address>7 Oak Street, Leeds</address>",
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"secretary": secretary, "mixer": mixer},
    )
