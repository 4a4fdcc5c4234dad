"""Mistakes that a type checker must report, one per marked line."""

import rove

env = rove.load_environment("tictactoe")
client = rove.ScriptedClient(env.policies["teacher"])
env.evaluate_sync(client, num_exmples=5)  # wrong: misspelled option
env.evaluate_sync(client, num_examples="5")  # wrong: type of an option
print(env.evaluate_sync(client)["reward"])  # wrong: a result is not a dict
print(rove.evalute)  # wrong: misspelled function
env.generate_sync(5)  # wrong: not a client
