"""Policies: what a file may say, what it compiles to, where it comes from, and whether it fits an engine."""
