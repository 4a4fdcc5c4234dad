"""Pin alley: a row of pins; each throw knocks down one pin or two neighbors; whoever knocks down the last pin wins."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Players take turns to knock down one standing pin, or two standing pins next to each other. Whoever knocks down the last "
    "pin wins. An illegal throw ends the game. Answer <throw>3</throw> or <throw>3 4</throw>"
)
THROW = re.compile(r"(\d+)(?:[ ,]+(\d+))?")


def throws(pins: str) -> list[tuple[int, ...]]:
    """Return the legal throws; a pin is "|" while it stands and "." after it fell."""
    single = [(index,) for index, pin in enumerate(pins) if pin == "|"]
    double = [(index, index + 1) for index in range(len(pins) - 1) if pins[index : index + 2] == "||"]
    return single + double


def knock(pins: str, throw: tuple[int, ...]) -> str:
    return "".join("." if index in throw else pin for index, pin in enumerate(pins))


@functools.cache
def nimber(length: int) -> int:
    """Return the Grundy value of a run of standing pins."""
    values = set()
    for size in (1, 2):
        for left in range(length - size + 1):
            values.add(nimber(left) ^ nimber(length - size - left))
    return next(value for value in range(len(values) + 1) if value not in values)


def winning_throws(pins: str) -> list[tuple[int, ...]]:
    """Return the throws after which the other player is lost."""
    found = []
    for throw in throws(pins):
        value = 0
        for run in knock(pins, throw).split("."):
            value ^= nimber(len(run))
        if value == 0:
            found.append(throw)
    return found


def show(pins: str) -> str:
    return " ".join(str(index) if pin == "|" else "." for index, pin in enumerate(pins))


def champion(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a winning throw if there is one."""
    throw = rng.choice(winning_throws(state["pins"]) or throws(state["pins"]))
    return f"<throw>{' '.join(map(str, throw))}</throw>"


def amateur(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play any legal throw."""
    return f"<throw>{' '.join(map(str, rng.choice(throws(state['pins']))))}</throw>"


class PinAlleyEnv(vf.MultiTurnEnv):
    """An environment in which the model throws first and a scripted opponent answers."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["pins"] = state["info"]["pins"]
        state["last_thrower"] = None

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        match = THROW.fullmatch((self.parser.parse_answer(messages) or "").strip())
        if match is None:
            state["final_env_response"] = "That is not a throw. The game is over."
            return None
        return self.play(state, tuple(int(number) for number in match.groups() if number is not None))

    def play(self, state: vf.State, throw: tuple[int, ...]) -> str | None:
        state["last_thrower"] = "model"
        if tuple(sorted(throw)) not in throws(state["pins"]):
            state["final_env_response"] = "Illegal throw. The game is over."
            return None
        state["pins"] = knock(state["pins"], throw)
        if "|" in state["pins"]:
            state["last_thrower"] = "opponent"
            reply = self.opponent_throw(state)
            state["pins"] = knock(state["pins"], reply)
            text = f"I throw {' '.join(map(str, reply))}.\n{show(state['pins'])}"
            if "|" in state["pins"]:
                return text
            state["final_env_response"] = f"{text}\nYou lose."
            return None
        state["final_env_response"] = "You win."
        return None

    def opponent_throw(self, state: vf.State) -> tuple[int, ...]:
        info, pins = state["info"], state["pins"]
        rng = random.Random(f"{info['seed']}:{pins}")
        best = winning_throws(pins) if rng.random() < info["skill"] else []
        return rng.choice(best or throws(pins))


def won(state: vf.State) -> float:
    """Return 1 if the model made the last throw."""
    return float(state["last_thrower"] == "model")


def draw_pins(rng: random.Random, parity: int) -> str:
    """Return a start from which the first player can win; games for training and evaluation differ in its parity."""
    while True:
        pins = "".join("." if rng.random() < 0.15 else "|" for _ in range(rng.randint(7, 13)))
        checksum = sum(index for index, pin in enumerate(pins, 1) if pin == "|") + len(pins)
        if checksum % 2 == parity and len(throws(pins)) > 6 and winning_throws(pins):
            return pins


def rows(count: int, seed: str, parity: int, skill: tuple[float, float]) -> list[dict[str, Any]]:
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {"pins": draw_pins(rng, parity), "seed": f"{seed}:{index}", "skill": rng.uniform(*skill)}
        made.append({"question": show(info["pins"]), "info": info})
    return made


def load_environment(
    num_examples: int = 500, num_eval_examples: int = 200, seed: int = 0, min_skill: float = 0.2, max_skill: float = 0.9
) -> vf.Environment:
    """Return an environment of games against opponents of varying skill.

    Args:
        num_examples: Number of training games.
        num_eval_examples: Number of evaluation games.
        seed: Random seed of the games.
        min_skill, max_skill: Range of the share of perfect throws of the opponent.
    """
    parser = vf.XMLParser(["throw"], answer_field="throw")
    skill = (min_skill, max_skill)
    return PinAlleyEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", 0, skill),
        eval_dataset=lambda: rows(num_eval_examples, f"{seed}:eval", 1, skill),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"champion": champion, "amateur": amateur},
        max_turns=14,
    )
