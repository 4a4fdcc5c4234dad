"""Compatibility check of environment packages: the API they are written for, their requirements, and scripted rollouts."""
