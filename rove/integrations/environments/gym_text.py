"""What models read of Gymnasium's text games, and what they may answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

COLOURED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
LAST_MOVE = re.compile(r"^\s*\(\w+\)\s*$\n?", re.MULTILINE)
TAXI_PLACES = ("R", "G", "Y", "B", "the taxi")


class Game(msgspec.Struct, frozen=True):
    """How a game is told."""

    about: str
    actions: tuple[str, ...]
    """Their names, by number."""
    reward_range: tuple[float, float] | None = None
    """Least and most that an episode's rewards add up to, as far as it matters."""
    max_steps: int | None = None
    """For games that know no limit of their own."""


LAKE = Game(
    "You walk on a frozen lake, from S to G over frozen squares F. A hole H ends the game. [ ] marks where you are.",
    ("left", "down", "right", "up"),
    (0.0, 1.0),
)
CLIFF = Game(
    "You (x) walk on a grid, from the lower left corner to T in the lower right. Every step costs 1; stepping on the cliff C "
    "costs 100 and puts you back at the start.",
    ("up", "right", "down", "left"),
    (-100.0, -13.0),
    100,
)
TAXI = Game(
    "You drive a taxi on a grid of 5 by 5 squares, row 0 at the top, column 0 on the left; walls | cannot be crossed. Fetch "
    "the passenger, bring them to their destination, drop them there. R is at row 0, column 0; G at 0, 4; Y at 4, 0; B at 4, 3.",
    ("south", "north", "east", "west", "pickup", "dropoff"),
    (-200.0, 20.0),
)
BLACKJACK = Game(
    "You play blackjack against the dealer: get closer to 21 than the dealer without going over.",
    ("stick", "hit"),
    (-1.0, 1.0),
)
GAMES = {
    "FrozenLake": LAKE,
    "FrozenLake8x8": LAKE,
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "Taxi": TAXI,
    "Blackjack": BLACKJACK,
}
"""By the id in Gymnasium, without its version."""


def game_of(env_id: str) -> Game | None:
    """How a game of Gymnasium is told; None for games that nobody has described here."""
    return GAMES.get(env_id.rpartition("/")[2].rpartition("-v")[0])


def describe(env: Any, observation: Any) -> str:
    """An observation as text: what the game draws, where it draws text, else the observation itself."""
    game = str(getattr(getattr(env, "spec", None), "id", "") or "")
    if game.startswith("Taxi"):
        return _taxi(env, observation)
    if game.startswith("Blackjack"):
        total, dealer, ace = observation
        return f"Your cards count {total}{', with a usable ace' if ace else ''}. The dealer shows {dealer}."
    if getattr(env, "render_mode", None) == "ansi":
        return plain(env.render())
    return observation if isinstance(observation, str) else str(observation)


def plain(drawing: str) -> str:
    """A drawing without colours; what stood on a coloured ground is in brackets."""

    def marked(found: re.Match[str]) -> str:
        on_ground = any(40 <= int(code) <= 47 for code in found[1].split(";") if code)
        return f"[{found[2]}]" if on_ground else found[2]

    return LAST_MOVE.sub("", COLOURED.sub(marked, drawing)).strip("\n")


def _taxi(env: Any, observation: int) -> str:
    row, column, passenger, goal = env.unwrapped.decode(int(observation))
    grid = LAST_MOVE.sub("", COLOURED.sub(lambda found: found[2], env.render())).strip("\n")
    where = f"at {TAXI_PLACES[passenger]}" if passenger < 4 else "in the taxi"
    return f"{grid}\nTaxi: row {row}, column {column}. Passenger: {where}. Destination: {TAXI_PLACES[goal]}."


def read_action(text: str, names: Sequence[str]) -> int | None:
    """The number of the action that a text names: by itself, by name or number, else the last name in it.

    Only what follows the last `</think>` counts, and of that what stands in `<action>` tags, if anything does.
    """
    text = text.rpartition("</think>")[2]
    tagged = re.findall(r"<action>(.*?)</action>", text, flags=re.DOTALL)
    said = (tagged[-1] if tagged else text).strip().strip(".!\"'`*").lower()
    lowered = [name.lower() for name in names]
    if said in lowered:
        return lowered.index(said)
    if re.fullmatch(r"\d+", said):
        return int(said) if int(said) < len(names) else None
    found = re.findall(rf"\b({'|'.join(map(re.escape, lowered))})\b", said) if lowered else []
    return lowered.index(found[-1]) if found else None
