"""Complaint replies: answer a customer's complaint and offer the remedy that the shop allows."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "You work for a shop. Answer the complaint in at most five sentences; apologize and offer the remedy."
JUDGE_PROMPT = """\
You are a quality manager. An employee of our shop had this task:

{question}

A good reply is polite, apologizes, and offers exactly this remedy: {answer}. Decide whether the employee's reply is good. \
Answer "yes" if it is and "no" if it is not.

The employee's reply:
{response}"""
PRODUCTS = [
    "alarm clock", "bicycle pump", "bread knife", "coffee grinder", "desk lamp", "electric kettle", "garden hose",
    "headset", "ironing board", "office chair", "rain coat", "rice cooker", "suitcase", "table fan", "wall shelf",
]  # fmt: skip
FAULTS = [
    "arrived broken", "arrived three weeks late", "is of the wrong color", "makes a loud noise", "smells of glue",
    "stopped working after a week", "was billed twice", "was delivered to a neighbor", "lacks the manual",
]  # fmt: skip
REMEDIES = [
    "a full refund", "a free replacement", "a voucher of 20 dollars", "a repair within five days", "a refund of the postage",
    "a discount of 15 percent on the next order", "a call by a technician",
]  # fmt: skip
CUSTOMERS = "Ms. Aydin,Mr. Brandt,Ms. Cole,Mr. Duval,Ms. Esposito,Mr. Fink,Ms. Grau,Mr. Hale".split(",")


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Apologize and offer the remedy."""
    info = state["info"]
    return (
        f"Dear {info['customer']}, thank you for writing to us. We are very sorry that the {info['product']} "
        f"{info['fault']}. To make up for it we offer you {state['answer']}."
    )


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        info = {"customer": rng.choice(CUSTOMERS), "product": rng.choice(PRODUCTS), "fault": rng.choice(FAULTS)}
        remedy = rng.choice(REMEDIES)
        question = f"{info['customer']} writes that the {info['product']} {info['fault']}. The shop allows {remedy}."
        if (zlib.crc32(question.encode()) % 2 == 1) == evaluation:
            rows[question] = {"question": question, "answer": remedy, "info": info}
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0, judge: Any = None) -> vf.Environment:
    """Return an environment with one complaint per example.

    Args:
        num_examples: Number of complaints.
        seed: Random seed of the dataset; evaluation complaints differ from training complaints.
        judge: A client for the judge, or its name in endpoints.toml. Default: a server on this machine.
    """
    if judge is None:
        judge = vf.OpenAIClient("http://localhost:8000/v1", "none")
    judge_options = {"judge_model": judge} if isinstance(judge, str) else {"judge_client": judge}
    rubric = vf.JudgeRubric(judge_prompt=JUDGE_PROMPT, **judge_options)
    rubric.add_reward_func(rubric.verdict)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"clerk": clerk},
    )
