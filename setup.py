"""Compiles the admission core with mypyc where GATEWAY_COMPILED is 1; else nothing is built, and all is plain Python.

The source is the same, and stays beside the extension modules for tracebacks. Why: docs/adr/0002-compiled-core.md
"""

import os
from pathlib import Path

from setuptools import Extension, setup

COMPILED = ("gateway/core",)


def extensions() -> list[Extension]:
    from mypyc.build import mypycify

    modules = [
        str(path) for folder in COMPILED for path in sorted(Path(folder).glob("*.py")) if path.stem != "__init__"
    ]
    return mypycify(["--config-file", "pyproject.toml", *modules], opt_level="1", debug_level="0")


setup(ext_modules=extensions() if os.environ.get("GATEWAY_COMPILED") == "1" else [])
