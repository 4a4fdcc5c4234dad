"""Bracket suffix: write the closing brackets that a line of code still needs."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A line of brackets was cut off. Write the shortest text that closes all open brackets in <answer> tags, "
    "for example <answer>])</answer>. If nothing is open, write <answer></answer>."
)
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


def suffix_of(line: str) -> str:
    """Return the brackets that close a line."""
    stack: list[str] = []
    for character in line:
        if character in PAIRS:
            stack.append(PAIRS[character])
        else:
            stack.pop()
    return "".join(reversed(stack))


def make_line(rng: random.Random) -> str:
    """Return a line whose brackets are nested correctly; about one in five is complete."""
    line, stack = "", []
    for _ in range(rng.randint(6, 16)):
        if stack and rng.random() < 0.45:
            line += stack.pop()
        else:
            bracket = rng.choice("([{<")
            stack.append(PAIRS[bracket])
            line += bracket
    if not stack:
        line, stack = line + "(", [")"]
    keep = 0 if rng.random() < 0.2 else rng.randint((len(stack) + 1) // 2, len(stack))
    while len(stack) > keep:
        line += stack.pop()
    return line


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for exactly the right brackets."""
    return float(parser.parse_answer(completion) == answer)


def stack_machine(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Follow the brackets with a stack."""
    return f"<answer>{suffix_of(messages[-1]['content'])}</answer>"


def counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count the brackets of each kind, and close them kind by kind."""
    line = messages[-1]["content"]
    return (
        "<answer>" + "".join(end * (line.count(start) - line.count(end)) for start, end in PAIRS.items()) + "</answer>"
    )


def _rows(count: int, seed: str, exclude: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    rng, lines = random.Random(seed), {}
    while len(lines) < count:
        line = make_line(rng)
        if line not in exclude:
            lines[line] = suffix_of(line)
    return [{"question": line, "answer": answer} for line, answer in lines.items()]


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with lines of brackets.

    Args:
        num_examples: Number of lines for training, and for evaluation.
        seed: Random seed of the lines.
    """
    evaluation = _rows(num_examples, f"{seed}:eval")
    held_out = frozenset(row["question"] for row in evaluation)
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out),
        eval_dataset=evaluation,
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"stack_machine": stack_machine, "counter": counter},
    )
