"""vLLM servers as an inference engine; separate because vLLM's HTTP interface changes between releases."""
