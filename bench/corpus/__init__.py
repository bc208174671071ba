"""Prompts of exact token length, made from a seed. Knows tokens, not time."""
