"""Read answers out of completions."""
