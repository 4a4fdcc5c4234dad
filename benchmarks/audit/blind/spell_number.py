"""Spell number: write a number in English words, without a long explanation."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "Write the number in English words, in lower case and without 'and': 342 is three hundred forty-two. "
    "Answer <words>number</words> and keep your reply short."
)
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
CHAR_COST = 0.015


def spell(number):
    """The words of a number below a million."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        rest = number % 100
        return f"{ONES[number // 100]} hundred" + (f" {spell(rest)}" if rest else "")
    rest = number % 1000
    return f"{spell(number // 1000)} thousand" + (f" {spell(rest)}" if rest else "")


def correct(completion, answer, parser):
    """1 for the right words."""
    return float(parser.parse_answer(completion) == answer)


def length(completion):
    """Number of characters of the reply."""
    return float(len(completion[-1].content or ""))


def speller(messages, state, rng):
    """Writes the number."""
    return f"<words>{spell(int(messages[-1].content))}</words>"


def last_part(messages, state, rng):
    """Writes only the part below one thousand."""
    return f"<words>{spell(int(messages[-1].content) % 1000)}</words>"


def rows(count, seed, evaluation):
    rng = random.Random(f"{seed}:{'eval' if evaluation else 'train'}")
    chosen, made = set(), []
    while len(made) < count:
        digits = rng.choice([3, 4, 5, 6, 6])
        number = rng.randrange(10 ** (digits - 1), 10**digits)
        if number in chosen or (number % 4 == 0) != evaluation:
            continue
        chosen.add(number)
        made.append({"question": str(number), "answer": spell(number)})
    return made


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Numbers from 100 to 999,999."""
    parser = vf.XMLParser(["words"], answer_field="words")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct, length], [1.0, -CHAR_COST], parser=parser),
        policies={"speller": speller, "last_part": last_part},
    )
