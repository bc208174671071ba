"""vLLM's scheduler as a model, and what runs on it in virtual time."""
