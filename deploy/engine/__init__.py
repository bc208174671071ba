"""A real vLLM on CPU with a tiny model: installed, built, started and stopped by one command.

Owns a cache folder outside the repository and the engines that it started itself. Standard library alone, so that
it runs before anything is installed. Never ends a process that it did not start.
"""
