"""Training with SFT and RL."""
