"""The embedded engine: the step model in real time, behind vLLM's HTTP face. No weights: what it writes is made up."""
