"""Pub quiz: five questions in a row; the model may pass on a question instead of guessing."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "This is a quiz of five questions about mental arithmetic. Reply with the number only. If you do not know the answer, "
    "reply 'pass': a wrong answer lowers your score, a pass does not."
)
NUM_QUESTIONS = 5


def make_question(rng: random.Random) -> tuple[str, str]:
    """Return a question and its answer."""
    kind = rng.choice(["product", "square", "percent", "sequence"])
    if kind == "product":
        a, b = rng.randint(11, 99), rng.randint(3, 29)
        return f"What is {a} times {b}?", str(a * b)
    if kind == "square":
        a = rng.randint(11, 60)
        return f"What is the square of {a}?", str(a * a)
    if kind == "percent":
        percent, whole = rng.choice([5, 10, 15, 20, 35, 40, 60]), 20 * rng.randint(4, 60)
        return f"What is {percent} percent of {whole}?", str(percent * whole // 100)
    start, step = rng.randint(2, 40), rng.randint(3, 17)
    numbers = [start + step * index + index * index for index in range(5)]
    return f"Continue the sequence {', '.join(map(str, numbers[:4]))}.", str(numbers[4])


def scholar(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know every answer."""
    return state["info"]["answers"][state["asked"] - 1]


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Reply with a number that is often near the answer."""
    return str(int(state["info"]["answers"][state["asked"] - 1]) + rng.choice([-10, -2, -1, 0, 1, 2, 10]))


class QuizEnv(vf.MultiTurnEnv):
    """An environment that asks one question after the other."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(asked=1, answered=0, right=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        info, reply = state["info"], str(messages[-1].content or "").strip().lower().rstrip(".")
        solution = info["answers"][state["asked"] - 1]
        if reply == "pass":
            feedback = f"It was {solution}."
        else:
            state["answered"] += 1
            state["right"] += reply == solution
            feedback = "Right." if reply == solution else f"No, it was {solution}."
        if state["asked"] == NUM_QUESTIONS:
            state["final_env_response"] = f"{feedback} That was the last question."
            return None
        state["asked"] += 1
        return f"{feedback} Question {state['asked']}: {info['questions'][state['asked'] - 1]}"


def accuracy(state: vf.State) -> float:
    """Return the share of right answers among the answers that the model gave."""
    if not state["answered"]:
        return 1.0
    return state["right"] / state["answered"]


def num_right(state: vf.State) -> float:
    """Return the number of right answers."""
    return float(state["right"])


def _rows(count: int, seed: str, first_number: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        questions, answers = zip(*[make_question(rng) for _ in range(NUM_QUESTIONS)])
        info = {"questions": list(questions), "answers": list(answers)}
        rows.append({"question": f"Quiz {first_number + index}. Question 1: {questions[0]}", "info": info})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with quizzes of five questions.

    Args:
        num_examples: Number of quizzes for training, and for evaluation.
        seed: Random seed of the questions.
    """
    rubric = vf.Rubric([accuracy])
    rubric.add_metric(num_right)
    return QuizEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 1),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 5001),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"scholar": scholar, "guesser": guesser},
        max_turns=NUM_QUESTIONS,
    )
