"""Helpers that know nothing of the rest of rove."""
