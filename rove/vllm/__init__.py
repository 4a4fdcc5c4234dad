"""vLLM servers as an inference engine; a separate package because vLLM's HTTP interface changes between releases."""
