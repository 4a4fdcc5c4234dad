"""The loop in stages: evaluate, new model, data, SFT, RL, and their pipeline; typed settings in, typed results out."""
