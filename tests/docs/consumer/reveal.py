"""The types that a checker shows to a user."""

from typing import reveal_type

from quiz import load_environment

import rove

env = rove.load_environment("tictactoe")
client = rove.ScriptedClient(env.policies["teacher"])
reveal_type(env)
reveal_type(load_environment())
reveal_type(client)


async def main() -> None:
    """Reveal the types of results."""
    reveal_type(await rove.evaluate(env, client))
    reveal_type((await rove.evaluate(env, client)).reward.mean)
    reveal_type((await rove.evaluate(env, client)).functions)
    reveal_type(await rove.generate(env, client))
    reveal_type(await rove.rescore(env, rove.Run("a"), into="b"))
    reveal_type(rove.compare([], []))
    reveal_type(env.evaluate_sync(client))
