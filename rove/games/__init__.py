"""Board games: exhaustive evaluation over the game tree, and replay cases."""
