"""Word train: build a long chain of words with a partner; each word begins with the last letter of the word before it."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

WORDS = """
    acorn arrow anvil apple badge barn basil bean bell boat bread candle canoe carrot castle cedar cherry clock clover cobra
    daisy desk drum dune eagle easel echo egg elbow engine falcon fern ferry flute fox garlic ghost glove goat grape hammer
    hat heron honey igloo ink iris island jacket jar jelly kayak kettle kite knot ladder lamp lemon lion lizard lotus magnet
    maple melon mint moss nest newt nickel noodle nutmeg oak oar onion orange otter owl palm pear pepper piano pond quail
    queen quilt rabbit radish raven ribbon river robin saddle salmon shell spoon swan table tiger tomato tower tulip umbrella
    urn vase violin walnut whale willow yak yarn yogurt zebra zipper
""".split()
SYSTEM_PROMPT = (
    "Build a chain of words with a partner: each word begins with the last letter of the word before it, and no word occurs "
    f"twice. Write up to four words per turn, separated by spaces; your partner then adds one. The longer the chain, the more "
    f"points. A word that does not fit ends the chain. Allowed words: {' '.join(WORDS)}."
)
PER_TURN, GOAL = 4, 20


def fitting(chain: list[str]) -> list[str]:
    """Return the words that can follow."""
    return [word for word in WORDS if word[0] == chain[-1][-1] and word not in chain]


class TrainEnv(vf.MultiTurnEnv):
    """An environment in which a scripted partner adds a word after each turn of the model."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(chain=[state["info"]["first"]], points=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        words = re.findall(r"[a-z]+", str(messages[-1].content or "").lower())
        chain = state["chain"]
        if not 1 <= len(words) <= PER_TURN:
            return self._end(state, f"Write one to {PER_TURN} words. The chain ends here.")
        for word in words:
            if word not in fitting(chain):
                return self._end(state, f"{word} does not fit. The chain ends here.")
            chain.append(word)
            state["points"] += 1
        if state["points"] >= GOAL:
            return self._end(state, "A very long chain. Well done!")
        options = fitting(chain)
        if not options:
            return self._end(state, "I do not know a word that fits. The chain ends here.")
        chain.append(random.Random(f"{state['info']['seed']}:{' '.join(chain)}").choice(options))
        if not fitting(chain):
            return self._end(state, f"{chain[-1]}. Now no word is left. The chain ends here.")
        return chain[-1]

    def _end(self, state: vf.State, text: str) -> None:
        state["final_env_response"] = text


def chain_length(state: vf.State) -> float:
    """Return the number of words that the model added, as a share of the goal."""
    return min(state["points"], GOAL) / GOAL


def turns(state: vf.State) -> float:
    """Return the number of turns."""
    return float(len(state["trajectory"]))


def _rows(count: int, seed: str, part: int) -> list[dict[str, Any]]:
    firsts = [word for word in WORDS if len(fitting([word])) > 1]
    random.Random("first words").shuffle(firsts)
    firsts = firsts[::2] if part else firsts[1::2]
    rows = []
    for index in range(count):
        info = {"first": firsts[index % len(firsts)], "seed": f"{seed}:{index}"}
        rows.append({"question": f"The first word is: {info['first']}", "info": info})
    return rows


def load_environment(num_examples: int = 60, seed: int = 0) -> vf.Environment:
    """Return an environment with chains that begin with different words.

    Args:
        num_examples: Number of chains for training, and for evaluation.
        seed: Random seed of the partner.
    """
    rubric = vf.Rubric([chain_length])
    rubric.add_metric(turns)
    return TrainEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=20,
    )
