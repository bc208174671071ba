"""Types of options for argparse: numbers within bounds. Pure."""

from __future__ import annotations

import argparse
import math


def whole(text: str) -> int:
    """An argparse type: a whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def positive(text: str) -> float:
    """An argparse type: a finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def not_negative(text: str) -> float:
    """An argparse type: a finite number from 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def share(text: str) -> float:
    """An argparse type: above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value
