"""The type of what commands register with."""

from __future__ import annotations

import argparse

Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it nowhere else
