"""Reverse text: the model writes a short English phrase backwards, character by character."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Reverse the text character by character, including the spaces.\n"
    "Answer with the reversed text only, for example <reversed_text>eert dlo</reversed_text> for the text: old tree"
)
WORDS = """
    apple arrow autumn baker beach bear bell bird boat book bread bridge brook brush cabin candle castle cat cedar
    chair cheese cherry cloud clover coast coin copper corn cottage cricket crow crown dawn deer dog door dove dream
    duck dust eagle earth echo elm ember evening falcon farm feather fern field fire fish flame flute fog forest fox
    frost garden gate ghost glass goat gold goose grain grape grass green harbor hare hawk hazel heart hill honey
    horse house ice iron island ivy jade jar kettle king kite lake lamp lantern lark leaf lemon letter light lily
    linen lion maple market meadow melon mill mirror moon morning moss mountain mouse music needle nest night north
    oak ocean olive orange owl paper path peach pear pearl pebble pepper piano pine plum pond poppy quail queen
    quiet rabbit rain raven red reed ribbon river road robin rock roof rope rose sail salt sand sea seed shadow
    sheep shell ship silver sky sleep smoke snow song south sparrow spoon spring star stone storm story stream
    street summer sun swan table tea thunder tiger tower train tree tulip valley velvet village violet violin walnut
    water wave wheat wheel white willow wind window winter wolf wood wool yellow
""".split()  # noqa: SIM905  200 quoted words would be unreadable


def lcs_ratio(a: str, b: str) -> float:
    """Return twice the length of the longest common subsequence of two texts, divided by the sum of their lengths."""
    row = [0] * (len(b) + 1)  # row[j]: length for the processed part of `a` and the first j characters of `b`
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(a) + len(b)) if a or b else 1.0


def likeness(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the similarity of the answer and the right text: 1 if they are equal, 0 without an answer."""
    return lcs_ratio(parser.parse_answer(completion) or "", answer)


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is exactly right."""
    return float(parser.parse_answer(completion) == answer)


def _in_tags(text: str) -> str:
    return f"<reversed_text>{text}</reversed_text>"


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right answer."""
    return _in_tags(state["answer"])


def copycat(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Repeat the text without reversing it."""
    return _in_tags(messages[-1].content)


def _rows(count: int, seed: str, words: list[str], min_words: int, max_words: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        text = " ".join(rng.choices(words, k=rng.randint(min_words, max_words)))
        rows.append({"question": text, "answer": text[::-1]})
    return rows


def load_environment(
    num_examples: int = 1000, seed: int = 0, min_words: int = 2, max_words: int = 5, num_words: int = len(WORDS)
) -> vf.Environment:
    """Return an environment in which the model reverses phrases of common English words.

    Args:
        num_examples: Number of phrases in the dataset.
        seed: Random seed of the dataset; evaluation phrases are drawn separately from training phrases.
        min_words, max_words: Minimum and maximum number of words in a phrase.
        num_words: Number of different words in the dataset; at most the number of `WORDS`.
    """
    if not 1 <= min_words <= max_words:
        raise vf.ConfigError(f"need 1 <= min_words <= max_words, got {min_words} and {max_words}")
    if not 1 <= num_words <= len(WORDS):
        raise vf.ConfigError(f"num_words is {num_words}; expected a number from 1 to {len(WORDS)}")
    words = [WORDS[i * len(WORDS) // num_words] for i in range(num_words)]
    parser = vf.XMLParser(["reversed_text"], answer_field="reversed_text")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(likeness, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    rubric.add_metric(exact)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", words, min_words, max_words),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", words, min_words, max_words),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"oracle": oracle, "copycat": copycat},
    )
