"""Fault interview: ask the owner of a machine about symptoms, then name the fault."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A customer calls about a machine. The manual lists the symptoms of each fault; a fault shows all of its symptoms and "
    "no others. Ask about one symptom at a time, for example <ask>red light</ask>; the customer answers yes or no. "
    "When you know the fault, name it, for example <fault>F3</fault>. Each question lowers your score a little; "
    "a wrong fault scores nothing."
)
SYMPTOMS = [
    "red light",
    "loud noise",
    "burnt smell",
    "slow start",
    "high heat",
    "water leak",
    "weak motor",
    "open door",
    "error beep",
    "dark screen",
    "shaking",
    "low pressure",
]
NUM_FAULTS = 8
MAX_TURNS = 10


class InterviewEnv(vf.MultiTurnEnv):
    """A call with a customer who answers yes or no."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(asked=0, named=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        reply = self.parser.parse(messages[-1].content or "")
        info = state["info"]
        if reply.fault:
            state["named"] = reply.fault.strip().upper()
            state["final_env_response"] = "Thank you, goodbye."
            return None
        state["asked"] += 1
        symptom = (reply.ask or "").strip().lower()
        if symptom not in info["symptoms"]:
            return "I do not know what you mean."
        return "Yes." if symptom in info["faults"][state["answer"]] else "No."


def diagnosis(state: vf.State, answer: str) -> float:
    """Return 1 less 0.04 for each question if the fault is right, else 0."""
    return (1 - 0.04 * state["asked"]) if state["named"] == answer else 0.0


def num_questions(state: vf.State) -> float:
    return float(state["asked"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        symptoms = rng.sample(SYMPTOMS, 6)
        signatures: set[tuple[str, ...]] = set()
        while len(signatures) < NUM_FAULTS:
            signatures.add(tuple(sorted(rng.sample(symptoms, rng.randint(1, 4)))))
        order = sorted(signatures)
        rng.shuffle(order)
        faults = {f"F{number}": list(signature) for number, signature in enumerate(order, start=1)}
        manual = "\n".join(f"{name}: {', '.join(signature)}" for name, signature in faults.items())
        info = {"symptoms": symptoms, "faults": faults}
        question = f"Manual:\n{manual}\n\nCustomer: Hello, my machine is broken."
        rows.append({"question": question, "answer": rng.choice(sorted(faults)), "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with calls from customers.

    Args:
        num_examples: Number of calls in each dataset; each has its own manual.
        seed: Random seed of the datasets.
    """
    parser = vf.XMLParser(["ask", "fault"], answer_field="fault")
    rubric = vf.Rubric([diagnosis], parser=parser)
    rubric.add_metric(num_questions)
    return InterviewEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        max_turns=MAX_TURNS,
    )
