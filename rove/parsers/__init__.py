"""Read answers out of a model's text."""
