"""Shipment delays: list the shipments that arrived late."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "List the numbers of all late shipments, separated by commas. An express shipment is late if it arrived after the promised "
    "day, a standard shipment if it arrived more than two days after it. Write nothing between the tags if none is late:\n"
    "<late>4012, 4077</late>"
)
CITIES = ["Lyon", "Porto", "Gdansk", "Bergen", "Trieste", "Leeds", "Malmo", "Graz", "Cork", "Bilbao", "Tartu", "Varna"]
GRACE = {"express": 0, "standard": 2}


def late_numbers(shipments: list[dict[str, Any]]) -> list[str]:
    """Return the numbers of the late shipments."""
    return [str(s["number"]) for s in shipments if s["arrived"] - s["promised"] > GRACE[s["service"]]]


def overlap(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the Jaccard index of the listed and the late shipments; 1 if both are empty, 0 without tags."""
    text = parser.parse_answer(completion)
    if text is None:
        return 0.0
    listed = {part.strip() for part in text.split(",") if part.strip()}
    late = {part for part in answer.split(", ") if part}
    return len(listed & late) / len(listed | late) if listed | late else 1.0


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List the late shipments."""
    return f"<late>{state['answer']}</late>"


def impatient(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List every shipment that arrived after the promised day."""
    shipments = state["info"]["shipments"]
    return f"<late>{', '.join(str(s['number']) for s in shipments if s['arrived'] > s['promised'])}</late>"


def _shipments(rng: random.Random) -> list[dict[str, Any]]:
    num_late = rng.choice([0, 1, 2, 3])
    shipments = []
    for index, number in enumerate(rng.sample(range(4000, 5000), rng.randint(8, 10))):
        service, promised = rng.choice(["express", "standard"]), rng.randint(5, 20)
        grace = GRACE[service]
        delay = grace + rng.randint(1, 4) if index < num_late else rng.randint(-3, grace)
        shipments.append(
            {
                "number": number,
                "service": service,
                "city": rng.choice(CITIES),
                "promised": promised,
                "arrived": promised + delay,
            }
        )
    rng.shuffle(shipments)
    return shipments


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        shipments = _shipments(rng)
        text = "\n".join(
            f"{s['number']}: {s['service']} to {s['city']}, promised for May {s['promised']}, arrived on May {s['arrived']}"
            for s in shipments
        )
        if (zlib.crc32(text.encode()) % 5 == 0) == held_out:
            rows.append(
                {"question": text, "answer": ", ".join(late_numbers(shipments)), "info": {"shipments": shipments}}
            )
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment that asks for late shipments.

    Args:
        num_examples: Number of lists for training and for evaluation; a quarter of them contains no late shipment.
        seed: Random seed of the lists.
    """
    parser = vf.XMLParser(["late"], answer_field="late")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([overlap], parser=parser),
        policies={"clerk": clerk, "impatient": impatient},
    )
