"""Training: SFT, RL, and what they share."""

import rove.games.exhaustive  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the evaluation kind "exhaustive"
