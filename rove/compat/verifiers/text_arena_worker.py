"""What a worker of v0's `TextArenaEnv` does: it plays one word game, a copy of the one that was made before the fork."""

from __future__ import annotations

from typing import Any

import nltk  # pyright: ignore[reportMissingImports]

WORD_LISTS = ("words", "averaged_perceptron_tagger_eng")


def setup(game: str) -> dict[str, Any]:
    """Make the game; what it shows first, and the words it knows."""
    for name in WORD_LISTS:
        nltk.download(name, quiet=True)
    textarena = __import__("textarena")  # at its import it asks for the lists
    made = Game.made = textarena.make(env_id=game)
    made.reset(num_players=1)
    words = made.word_list
    if isinstance(words, dict):
        words = [word for some in words.values() for word in (some if isinstance(some, (list, tuple)) else [some])]
    return {"question": made.get_observation()[1], "words": list(words)}


class Game:
    """The game of this process."""

    made: Any


class Session:
    """One rollout of it."""

    def begin(self, word: str) -> None:
        """Let a word be the secret one."""
        Game.made.state.game_state["secret_word"] = word

    def guess(self, guess: str) -> dict[str, Any]:
        """A guess; why the game has ended, or what it shows then."""
        Game.made.step(guess)
        if Game.made.state.done:
            return {"done": True, "said": Game.made.state.game_info[0]["reason"]}
        return {"done": False, "said": Game.made.get_observation()[1]}
