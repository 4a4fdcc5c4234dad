"""Short sentences: simple questions; the shorter the sentences of an answer, the higher the reward."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import rove as vf

THINGS = """
    anchor apple bakery balloon bank beach bicycle bird blanket boat bridge broom butterfly camera candle castle cat
    chair chimney clock cloud compass computer cow desert doctor dog dolphin drum eagle elephant engine farmer
    festival fireplace flower forest fountain garden giraffe glacier glove guitar hammer harbor hedgehog helmet horse
    hotel iceberg island jacket jungle kettle key kitchen kite ladder lake lamp lemon library lighthouse lion magnet
    map market mirror moon mountain museum newspaper nurse ocean orchestra oven owl painter park penguin piano pilot
    pirate planet pond pumpkin rabbit rainbow raincoat recipe river robot school shark ship snowman spider star storm
    subway suitcase sun sword telescope theater tiger train treasure tree tunnel umbrella vaccine valley violin
    volcano whale wheel windmill window winter wolf
""".split()  # noqa: SIM905  a list of one word per line would be 130 lines
QUESTIONS = (
    "What is {}?",
    "What do you know about {}?",
    "Why do people like {}?",
    "Tell me about {}.",
    "How would you describe {} to a child?",
)
MIN_WORDS = 4
"""A sentence of fewer words scores 0."""
FULL_SCORE_WORDS = 8
"""A sentence of `MIN_WORDS` to this many words scores 1."""
ZERO_SCORE_WORDS = 24
"""A sentence of at least this many words scores 0."""


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text; the last one may be unfinished."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part.strip()]


def sentence_score(words: int) -> float:
    """Return the score of a sentence, from 0 to 1, for its number of words."""
    score = (ZERO_SCORE_WORDS - words) / (ZERO_SCORE_WORDS - FULL_SCORE_WORDS)
    return 0.0 if words < MIN_WORDS else min(1.0, max(0.0, score))


def short_sentences(completion: vf.Messages) -> float:
    """Return the mean score of the words; a word has the score of its sentence, and repeated sentences score 0."""
    total, earned, earlier_sentences = 0, 0.0, set[str]()
    for sentence in split_sentences(str(completion[-1].content or "")):
        words = len(sentence.split())
        total += words
        if sentence.lower() not in earlier_sentences:
            earned += words * sentence_score(words)
        earlier_sentences.add(sentence.lower())
    return earned / total if total else 0.0


def words_per_sentence(completion: vf.Messages) -> float:
    """Return the mean number of words in a sentence; 0 for an empty answer."""
    sentences = split_sentences(str(completion[-1].content or ""))
    return sum(len(sentence.split()) for sentence in sentences) / max(1, len(sentences))


def plain(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer in short sentences."""
    return "Most people know it well. Children learn about it early. It is found in many places."


def ornate(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer in one long sentence."""
    return (
        "It is something that most people know well, which children learn about at an early age, and which, as many have "
        "written before, can be found in a great number of places all over the world."
    )


def rows(things: Sequence[str], num_examples: int, seed: int) -> list[dict[str, Any]]:
    """Return dataset rows with questions about the given things, in random order."""
    named = [f"an {thing}" if thing[0] in "aeiou" else f"a {thing}" for thing in things]
    questions = [question.format(thing) for thing in named for question in QUESTIONS]
    rng = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < num_examples:
        chosen += rng.sample(questions, min(len(questions), num_examples - len(chosen)))
    return [{"question": question, "answer": ""} for question in chosen]


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment that rewards short sentences.

    Args:
        num_examples: Number of questions in each dataset; training and evaluation questions are about different things.
        seed: Random seed of the datasets.
    """
    held_out = THINGS[::5]
    trained = [thing for thing in THINGS if thing not in held_out]
    rubric = vf.Rubric()
    rubric.add_reward_func(short_sentences)
    rubric.add_metric(words_per_sentence)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(trained, num_examples, seed),
        eval_dataset=lambda: rows(held_out, num_examples, seed + 1),
        rubric=rubric,
        policies={"plain": plain, "ornate": ornate},
    )
