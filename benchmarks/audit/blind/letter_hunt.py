"""Letter hunt: find a five-letter word; every guess is answered with the colors of its letters."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find the secret English word of five letters within six guesses. After each guess, you see G for a letter in the right "
    "place, Y for a letter in another place, and - for a letter that is not in the word. Answer with <guess>word</guess>."
)
GUESSES = 6
WORDS = """
    about actor admit adult after agree alarm alert alive alone angle apple arena arrow aside audio award bacon basic beach
    begin bench birth blade blank blend block board boost brain bread brick brief bring broad brown brush build cabin cable
    candy cargo carry catch chain chair chalk charm chart chase cheap check chest chief child civic claim class clean clear
    clerk climb clock cloud coach coast coral count court cover craft crane crash cream crowd crown curve cycle daily dance
    dealt delay depth dirty donor doubt draft drain drama dream dress drift drink drive eager early earth elbow empty enjoy
    enter equal error event exact extra faith false fancy favor fence fever field fight final first flame flash fleet floor
    flour focus force frame fresh front frost fruit giant glass globe glory grace grain grand grant grape graph grass great
    green group guard guess guest guide habit happy harsh heart heavy hobby honey honor horse hotel house human humor image
    index inner input issue jelly jewel joint judge juice knife known label large laser later laugh layer learn lemon level
    light limit local logic loyal lucky lunch magic major maple march match medal metal meter minor model money month moral
    motor mount mouse mouth movie music nerve night noble noise north novel nurse ocean offer olive onion opera orbit order
    organ other outer owner paint panel paper party pasta peace pearl phase phone photo piano piece pilot pitch place plain
    plane plant plate point porch pound power press price pride prime print prize proof proud pulse queen quick quiet radio
""".split()


def colors(guess: str, word: str) -> str:
    """Return one character per letter: G, Y, or -."""
    left = Counter(actual for guessed, actual in zip(guess, word) if guessed != actual)
    result = []
    for guessed, actual in zip(guess, word):
        if guessed == actual:
            result.append("G")
        elif left[guessed] > 0:
            left[guessed] -= 1
            result.append("Y")
        else:
            result.append("-")
    return "".join(result)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a word that is consistent with all answers."""
    possible = [word for word in WORDS if all(colors(guess, word) == seen for guess, seen in state["history"])]
    return f"<guess>{rng.choice(possible)}</guess>"


def any_word(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess any word."""
    return f"<guess>{rng.choice(WORDS)}</guess>"


class LetterHuntEnv(vf.MultiTurnEnv):
    """An environment that answers each guess with colors."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["history"] = []

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        found = re.findall(r"<guess>\s*([a-z]{5})\s*</guess>", (messages[-1].content or "").lower())
        left = GUESSES - len(state["trajectory"])
        if not found:
            return f"Invalid guess. {left} left."
        guess, word = found[-1], state["answer"]
        state["history"].append((guess, colors(guess, word)))
        if guess == word:
            state["final_env_response"] = "You found the word."
            return None
        return f"{guess.upper()}\n{colors(guess, word)}\n{left} left."


def solved(state: vf.State) -> float:
    """Return 1 if the word was found."""
    return float(any(seen == "GGGGG" for _, seen in state["history"]))


def letters(state: vf.State) -> float:
    """Return the credit for letters: 0.1 for each one in the right place and 0.05 for each one in another place."""
    return sum(0.1 * seen.count("G") + 0.05 * seen.count("Y") for _, seen in state["history"])


def num_guesses(state: vf.State) -> float:
    """Return the number of valid guesses."""
    return float(len(state["history"]))


def _rows(words: list[str], count: int, seed: str) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(words, min(count, len(words)))
    return [{"question": f"Guess the word. {GUESSES} left.", "answer": word} for word in chosen]


def load_environment(num_train: int = 180, num_eval: int = 70, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model guesses words; the words for evaluation are not used for training.

    Args:
        num_train, num_eval: Maximum number of words.
        seed: Random seed of the order of the words.
    """
    evaluation = WORDS[::4]
    train = [word for word in WORDS if word not in evaluation]
    rubric = vf.Rubric()
    rubric.add_reward_func(solved, weight=1.0)
    rubric.add_reward_func(letters, weight=1.0)
    rubric.add_metric(num_guesses)
    return LetterHuntEnv(
        dataset=lambda: _rows(train, num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(evaluation, num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"solver": solver, "any_word": any_word},
        max_turns=GUESSES,
    )
