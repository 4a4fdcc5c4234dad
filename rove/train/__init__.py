"""Training: SFT, RL, and what they share."""
