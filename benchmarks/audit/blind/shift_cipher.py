"""Shift cipher: decode a word in which every letter was moved by the same number of places."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A cipher moves every letter of a word by the same number of places in the alphabet. Work out the key from the "
    "solved examples and decode the last word. Answer <word>decoded</word>"
)
WORDS = """
    amber anchor apricot badger bamboo barrel basket beacon blanket blossom bottle bramble bridge bucket butter button
    cactus candle canyon carpet castle cellar cherry chimney circus clover cobweb coffee copper cotton cradle crayon
    crystal curtain dagger daisy desert dinner dolphin donkey dragon drawer eagle elbow ember engine falcon feather
    ferry fiddle flannel forest fossil fountain freckle garden garlic gazelle ginger glacier goblet granite hammer
    hamper harbor harvest hazel helmet hollow honey hunter island ivory jacket jasmine jigsaw jungle kernel kettle
    kitten ladder lagoon lantern lavender lemon lizard locket lumber magnet mantle marble meadow mirror mitten monkey
    mosaic muffin mustard napkin needle nettle nutmeg oatmeal orchard otter oyster paddle palace parsley pebble pencil
    pepper pewter pigeon pillow plaster pocket pollen poplar pretzel puddle pumpkin quarry quiver rabbit radish raven
    ribbon river rocket rooster saddle saffron salmon sandal satchel shadow shovel silver sparrow spindle sponge
    squirrel stable sunset swallow tailor teapot temple thimble thistle thunder timber tomato trumpet tulip tunnel
    turnip turtle umbrella valley velvet vessel village violet walnut walrus whisker willow window winter wizard yarrow
    zephyr zipper
""".split()


def shifted(word: str, key: int) -> str:
    """Return a word with every letter moved by `key` places."""
    return "".join(chr((ord(letter) - 97 + key) % 26 + 97) for letter in word)


def decoded(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right word."""
    return float((parser.parse_answer(completion) or "").lower() == answer)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Decode the word with the key."""
    return f"<word>{shifted(state['info']['secret'], -state['info']['key'])}</word>"


def copier(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Repeat the encoded word."""
    return f"<word>{state['info']['secret']}</word>"


def _prompt(row: dict[str, Any], rows: list[dict[str, Any]], shots: int) -> str:
    same_key = [other for other in rows if other["key"] == row["key"]]
    lines = [f"{other['secret']} -> {other['word']}" for other in same_key[:shots]]
    return "\n".join([*lines, f"{row['secret']} -> ?"])


def _rows(count: int, seed: str, held_out: bool, shots: int) -> list[dict[str, Any]]:
    words = [word for word in WORDS if (zlib.crc32(word.encode()) % 3 == 0) == held_out]
    rng = random.Random(seed)
    rng.shuffle(words)
    plain = []
    for index in range(count):
        word, key = words[index % len(words)], index % 25 + 1
        plain.append({"word": word, "key": key, "secret": shifted(word, key)})
    rng.shuffle(plain)
    return [
        {
            "question": _prompt(row, plain, shots),
            "answer": row["word"],
            "info": {"secret": row["secret"], "key": row["key"]},
        }
        for row in plain
    ]


def load_environment(num_examples: int = 75, seed: int = 0, shots: int = 2) -> vf.Environment:
    """Return an environment with encoded words.

    Args:
        num_examples: Number of words for training, and for evaluation; all 25 keys occur equally often.
        seed: Random seed of the words and their order.
        shots: Maximum number of solved examples in a prompt.
    """
    parser = vf.XMLParser(["word"], answer_field="word")
    rubric = vf.Rubric([decoded], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False, shots),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True, shots),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "copier": copier},
    )
