"""The run folder: all files that a run writes to disk."""
