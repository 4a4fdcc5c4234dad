"""Conversion between messages and tokens: chat templates and tool-call formats."""
