"""The run folder: everything that a run keeps on disk."""
