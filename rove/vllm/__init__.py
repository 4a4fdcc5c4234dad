"""vLLM as an engine: a room of its own, since its interface changes between releases."""
