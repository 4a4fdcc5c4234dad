"""Worker of v0's `TextArenaEnv`: each process plays a copy of the game that was created before the fork."""

from __future__ import annotations

from typing import Any

import nltk  # pyright: ignore[reportMissingImports]

WORD_LISTS = ("words", "averaged_perceptron_tagger_eng")


def setup(game: str) -> dict[str, Any]:
    """Create the game; return its first observation and the words that it knows."""
    for name in WORD_LISTS:
        nltk.download(name, quiet=True)
    textarena = __import__("textarena")  # its import needs the word lists
    game_instance = Game.instance = textarena.make(env_id=game)
    game_instance.reset(num_players=1)
    words = game_instance.word_list
    # As in v0, which has the same lines for games that group their words.
    if isinstance(words, dict):
        groups = list(words.values())
        words = []
        for group in groups:
            words += group if isinstance(group, (list, tuple)) else [group]
    return {"question": game_instance.get_observation()[1], "words": list(words)}


class Game:
    """The game of this process."""

    instance: Any


class Session:
    """One rollout of the game."""

    def begin(self, word: str) -> None:
        """Set the secret word."""
        Game.instance.state.game_state["secret_word"] = word

    def guess(self, guess: str) -> dict[str, Any]:
        """Make a guess; return the observation, or why the game has ended."""
        Game.instance.step(guess)
        if Game.instance.state.done:
            return {"done": True, "text": Game.instance.state.game_info[0]["reason"]}
        return {"done": False, "text": Game.instance.get_observation()[1]}
