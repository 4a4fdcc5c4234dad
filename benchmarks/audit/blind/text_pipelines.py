"""Text pipelines: write a small program of text commands; it is run on hidden inputs."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = """Write a program that does what the user describes, one command per line, in <program> tags.
Commands: upper, lower, reverse, take N (the first N characters), drop N (without the first N characters),
double (the text twice), append X, prepend X (one word). The commands run from top to bottom."""
WORDS = """
    amber basket cobalt dragon ember falcon garnet hollow indigo jigsaw kernel lantern marble nectar orchid pepper
    quartz ribbon saddle timber umbrella velvet walnut yonder zephyr
""".split()  # noqa: SIM905
DESCRIPTIONS = {
    "upper": "write it in capital letters",
    "reverse": "turn it around",
    "take": "keep only the first {} characters",
    "drop": "remove the first {} characters",
    "double": "write it twice in a row",
    "append": "put {} after it",
    "prepend": "put {} before it",
}
NUM_TESTS = 5


def execute(program: str, text: str) -> str:
    """Return the output of a program.

    Raises:
        ValueError: a command is unknown or its argument is not valid.
    """
    for line in program.strip().splitlines():
        name, _, argument = line.strip().partition(" ")
        if name == "upper":
            text = text.upper()
        elif name == "lower":
            text = text.lower()
        elif name == "reverse":
            text = text[::-1]
        elif name == "take":
            text = text[: int(argument)]
        elif name == "drop":
            text = text[int(argument) :]
        elif name == "double":
            text = (text * 2)[:500]
        elif name == "append":
            text = text + argument
        elif name == "prepend":
            text = argument + text
        elif name:
            raise ValueError(f"unknown command {name!r}")
    return text


def run_tests(program: str, inputs: list[str]) -> tuple[list[str], str]:
    """Return the outputs for the inputs and the error that stopped the program, if any."""
    outputs = []
    try:
        for text in inputs:
            outputs.append(execute(program, text))
    except ValueError as error:
        return outputs, str(error)
    return outputs, ""


def passed(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser, state: vf.State) -> float:
    """Return 1 if the outputs of the program are the expected ones."""
    program = parser.parse_answer(completion)
    if not program:
        return 0.0
    outputs, state["program_error"] = run_tests(program, info["inputs"])
    return float(all(output == expected for output, expected in zip(outputs, info["expected"])))


def program_length(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return the number of lines of the program."""
    return float(len((parser.parse_answer(completion) or "").splitlines()))


def programmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the right program."""
    return f"<program>\n{state['answer']}\n</program>"


def forgetful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Leave out the last command."""
    return "<program>\n" + "\n".join(state["answer"].splitlines()[:-1] or ["lower"]) + "\n</program>"


def make_row(rng: random.Random) -> dict[str, Any]:
    inputs = rng.sample(WORDS, NUM_TESTS)
    while True:
        commands, texts = [], []
        for name in rng.sample(sorted(DESCRIPTIONS), rng.randint(2, 4)):
            argument = {"take": str(rng.randint(2, 5)), "drop": str(rng.randint(1, 3))}.get(name, rng.choice(WORDS))
            has_argument = "{}" in DESCRIPTIONS[name]
            commands.append(f"{name} {argument}" if has_argument else name)
            texts.append(DESCRIPTIONS[name].format(argument))
        program = "\n".join(commands)
        expected = [execute(program, text) for text in inputs]
        if all(expected) and len(set(expected)) == NUM_TESTS and not set(expected) & set(inputs):
            break
    return {
        "question": "Take a text, then " + ", then ".join(texts) + ".",
        "answer": program,
        "info": {"inputs": inputs, "expected": expected},
    }


def datasets(num_examples: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return training and evaluation rows; no description occurs twice."""
    rng, seen, made = random.Random(f"{seed}:pipelines"), set[str](), []
    while len(made) < 2 * num_examples:
        row = make_row(rng)
        if row["question"] not in seen:
            seen.add(row["question"])
            made.append(row)
    return made[:num_examples], made[num_examples:]


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment of programs to write.

    Args:
        num_examples: Number of programs in each dataset.
        seed: Random seed of the programs.
    """
    parser = vf.XMLParser(["program"], answer_field="program")
    rubric = vf.Rubric([passed], parser=parser)
    rubric.add_metric(program_length)
    train, held_out = datasets(num_examples, seed)
    return vf.SingleTurnEnv(
        dataset=train,
        eval_dataset=held_out,
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"programmer": programmer, "forgetful": forgetful},
    )
