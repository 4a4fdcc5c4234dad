"""Training: SFT, RL, and what they share."""

import rove.games.exhaustive  # noqa: F401  registers the evaluation kind "exhaustive"
