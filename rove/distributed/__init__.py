"""Environments on other machines."""
