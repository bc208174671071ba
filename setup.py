"""Compiles the core and the simulations with mypyc where GATEWAY_COMPILED is 1; else all stays plain Python.

The source is the same, and stays beside the extension modules for tracebacks. Why: docs/adr/0002-compiled-core.md
"""

import os
from pathlib import Path

from setuptools import Extension, setup

CORE = [path for path in sorted(Path("gateway/core").glob("*.py")) if path.stem != "__init__"]
# What runs once a step or a request, and what derives from it: plain Python cannot.
SIMULATION = [
    Path(f"bench/simulation/{name}.py")
    for name in (
        *("direct", "emulator/generation", "engine_room", "kv_blocks", "kv_runs", "play", "posts", "quick_engine"),
        *("steps", "virtual_engine", "virtual_pool"),
    )
]


def extensions() -> list[Extension]:
    from mypyc.build import mypycify

    return mypycify(["--config-file", "pyproject.toml", *map(str, CORE + SIMULATION)], opt_level="1", debug_level="0")


setup(ext_modules=extensions() if os.environ.get("GATEWAY_COMPILED") == "1" else [])
